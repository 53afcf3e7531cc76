"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const tables = data.tables;
const METRICS = { accuracy: "accuracy", auc: "ROC-AUC" };
const DASHES = { solid: null, dash: "8 4", dot: "2 3", dashdot: "8 3 2 3" };

// Elements. Text becomes text nodes, so nothing from a study is ever read as markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const part = (id) => document.querySelector(`[data-part="${id}"]`);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
const signed = (value, digits = 2) => (known(value) ? (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits) : "–");
const figure3 = (value) => (known(value) ? String(Number(value.toPrecision(3))) : "–");
const score = (value, deviation) => (known(deviation) ? `${fixed(value)} ± ${fixed(deviation)}` : fixed(value));
const unique = (values) => [...new Set(values)];

function scroller(label, ...children) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
}
function grid(head, rows, options = {}) {
  const line = (values, top) => el("tr", {}, values.map((value, place) => el(top || place === 0 ? "th" : "td", {
    class: place < (options.left ?? 1) ? "left" : null, scope: top ? "col" : place === 0 ? "row" : null,
  }, value)));
  return el("table", { class: "dense" }, el("thead", {}, line(head, true)),
    el("tbody", {}, rows.map((row) => line(row, false))));
}
function select(label, choices, chosen, change) {
  const box = el("select", { onchange: () => change(box.value) },
    choices.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)));
  return el("label", {}, label, box);
}
function picture(label, draw, caption) {
  const holder = el("div");
  const node = el("figure", {}, holder, caption ? el("figcaption", {}, caption) : null);
  let width = 0;
  const redraw = () => {
    const next = Math.round(holder.clientWidth);
    if (!next || next === width) return;
    width = next;
    holder.replaceChildren(draw(width, label));
  };
  new ResizeObserver(redraw).observe(holder);
  return node;
}
function scenarios(has) {
  const found = [];
  tables.forEach((table, t) => table.columns.forEach((column, c) => {
    if (!has(table, c)) return;
    const mark = table.kind === "measured" ? "" : `${table.kind}: `;
    found.push([`${t}-${c}`, mark + column.title]);
  }));
  return found;
}
// One scenario at a time: sixty-six figures at once are neither readable nor quick.
function byScenario(id, has, show) {
  const place = part(id);
  if (!place) return;
  const choices = scenarios(has);
  const body = el("div");
  const update = (value) => {
    const [t, c] = value.split("-").map(Number);
    body.replaceChildren(...show(tables[t], c, t).filter(Boolean));
  };
  place.append(el("div", { class: "controls" }, select("scenario", choices, choices[0][0], update)), body);
  update(choices[0][0]);
}
const members = (table, c, values) =>
  table.rows.map((row, r) => [row, r, values[`${r}-${c}`]]).filter(([, , value]) => value !== undefined);

// Links to the MLflow UI

const ui = document.getElementById("ui");
function address() { return ui.value.replace(/\/+$/, ""); }
function link(path, text, attributes = {}) {
  return el("a", { "data-path": path, href: safe(path), target: "_blank", rel: "noopener", ...attributes }, text);
}
function safe(path) { return /^https?:\/\//i.test(address()) ? address() + path : "#"; }
const runPath = (run) => `/#/experiments/${data.experiment_id}/runs/${run}`;
function relink() {
  for (const anchor of all("a[data-path]")) anchor.setAttribute("href", safe(anchor.dataset.path));
}
function remembered(key, value) {
  // Inside a sandboxed frame there is no storage.
  try { if (value !== undefined) localStorage.setItem(key, value); return localStorage.getItem(key); } catch { return null; }
}
ui.addEventListener("change", () => { relink(); remembered("fedatlas-ui", ui.value); });
const before = remembered("fedatlas-ui");
if (before && !data.ui_given) { ui.value = before; relink(); }

// Results: runs of a cell, sorting, filters

const dialog = document.getElementById("runs");
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.runs");
  if (!button) return;
  const [t, r, c] = button.dataset.cell.split("-");
  const table = tables[t], cell = table.cells[`${r}-${c}`];
  dialog.querySelector("h3").textContent = `${table.rows[r].name}: ${table.columns[c].title}`;
  dialog.querySelector("div").replaceChildren(scroller("Runs", grid(
    ["seed", "test %", "best round", "run", "fingerprint"],
    cell.runs.map(([run, seed, test, best, print]) => [
      String(seed), fixed(test), known(best) ? String(best + 1) : "–",
      link(runPath(run), run, { class: "mono" }), el("span", { class: "mono" }, print)]))));
  dialog.showModal();
});

const shown = { set: new Set(), partition: new Set(), clients: new Set() };
const hiddenMethods = new Set();
const visibleColumn = (column) => shown.set.has(column.set) && shown.partition.has(column.partition)
  && shown.clients.has(String(column.clients));

function refresh() {
  all("table.results").forEach((node) => {
    const table = tables[node.dataset.table];
    const columns = table.columns.map(visibleColumn);
    const rows = table.rows.map((row) => !hiddenMethods.has(row.name));
    for (const cell of all("[data-c]", node)) cell.hidden = !columns[cell.dataset.c];
    for (const head of all("th[data-columns]", node)) {
      const count = head.dataset.columns.split(",").filter((c) => columns[c]).length;
      head.hidden = count === 0;
      if (count) head.colSpan = count;
    }
    for (const line of all("tr[data-r]", node)) line.hidden = !rows[line.dataset.r];
    rank(node, table, rows, columns);
  });
}
function rank(node, table, rows, columns) {
  const visible = table.rows.map((_, r) => r).filter((r) => rows[r]);
  const cell = (r, c) => table.cells[`${r}-${c}`];
  const whole = table.columns.map((_, c) => c).filter((c) => columns[c] && visible.length
    && visible.every((r) => cell(r, c) && cell(r, c).complete));
  node.querySelector("[data-count]").textContent = `${whole.length} of ${columns.filter(Boolean).length}`;
  for (const line of all("tr[data-r]", node)) {
    const r = Number(line.dataset.r);
    const mine = rows[r] ? whole.map((c) => cell(r, c).mean) : [];
    const average = mine.length > 1 ? mean(mine) : null;
    const ranks = visible.length > 1 ? whole.map((c, place) => {
      const others = visible.map((other) => cell(other, c).mean);
      return 1 + others.filter((value) => value > mine[place]).length
        + (others.filter((value) => value === mine[place]).length - 1) / 2;
    }) : [];
    line.querySelector("[data-average]").textContent = fixed(average);
    line.querySelector("[data-rank]").textContent = mine.length && ranks.length ? fixed(mean(ranks)) : "–";
  }
}
function sortable(node) {
  const table = tables[node.dataset.table], body = node.tBodies[0];
  const value = (line, key) => {
    const r = Number(line.dataset.r);
    if (key === "name") return table.rows[r].name;
    if (key === "average" || key === "rank") {
      const found = parseFloat(line.querySelector(`[data-${key}]`).textContent);
      return Number.isNaN(found) ? null : found;
    }
    return table.cells[`${r}-${key}`]?.mean ?? null;
  };
  for (const button of all("button.sort", node)) button.addEventListener("click", () => {
    const head = button.closest("th"), key = button.dataset.sort;
    const first = key === "name" || key === "rank" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const each of all("th[aria-sort]", node)) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    body.append(...all("tr", body).map((line) => [value(line, key), line]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
    }).map(([, line]) => line));
  });
}
function tick(text, checked, change) {
  const box = el("input", { type: "checkbox", checked, onchange: () => change(box.checked) });
  return el("label", { class: "tick" }, box, text);
}
function filters() {
  const place = document.getElementById("filters");
  if (!place) return;
  const columns = tables.flatMap((table) => table.columns);
  const groups = [["set", "data set"], ["partition", "partition"], ["clients", "clients"]];
  for (const [key, title] of groups) {
    const values = unique(columns.map((column) => String(column[key])));
    if (key === "clients") values.sort((a, b) => a - b);
    values.forEach((value) => shown[key].add(value));
    if (values.length > 1) place.append(el("fieldset", { "data-filter": key }, el("legend", {}, title),
      values.map((value) => tick(value, true, (on) => { on ? shown[key].add(value) : shown[key].delete(value); refresh(); }))));
  }
  const names = unique(tables.flatMap((table) => table.rows.map((row) => row.name)));
  if (names.length > 1) {
    const boxes = new Map(names.map((name) => [name, tick(name, true, (on) => {
      on ? hiddenMethods.delete(name) : hiddenMethods.add(name); refresh();
    })]));
    const hideIncomplete = () => {
      const table = tables[0];
      table.rows.forEach((row, r) => {
        const whole = table.columns.every((column, c) => !visibleColumn(column) || table.cells[`${r}-${c}`]?.complete);
        if (!whole && table.columns.some(visibleColumn)) {
          hiddenMethods.add(row.name);
          boxes.get(row.name).querySelector("input").checked = false;
        }
      });
      refresh();
    };
    const showAll = () => {
      hiddenMethods.clear();
      for (const box of boxes.values()) box.querySelector("input").checked = true;
      refresh();
    };
    place.append(el("details", {}, el("summary", {}, "methods"), el("fieldset", { "data-filter": "method" },
      el("legend", {}, "methods"), [...boxes.values()])),
    el("div", { class: "controls" },
      el("button", { type: "button", class: "plain", onclick: hideIncomplete }, "Hide methods that lack results"),
      el("button", { type: "button", class: "plain", onclick: showAll }, "Show all methods"),
      tick("published values and differences", true, (on) => document.body.classList.toggle("without-published", !on)),
      tick("last round", false, (on) => document.body.classList.toggle("without-last", !on))));
    document.body.classList.add("without-last");
  }
  place.hidden = false;
  all("table.results").forEach(sortable);
  // The script's averages are those of the page: what is shown is what they are taken over.
  refresh();
}

// Line charts

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
function bounds(values, space) {
  const low = Math.min(...values), high = Math.max(...values);
  const extra = (high - low || Math.abs(high) || 1) * space;
  return [low - extra, high + extra];
}
const MARKS = {
  circle: (x, y, s) => `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0Z`,
  square: (x, y, s) => `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}Z`,
  triangle: (x, y, s) => `M${x},${y - s * 1.2}l${s * 1.1},${s * 2}h${-s * 2.2}Z`,
  diamond: (x, y, s) => `M${x},${y - s * 1.3}l${s * 1.3},${s * 1.3}l${-s * 1.3},${s * 1.3}l${-s * 1.3},${-s * 1.3}Z`,
  cross: (x, y, s) => `M${x - s},${y - s}l${2 * s},${2 * s}M${x + s},${y - s}l${-2 * s},${2 * s}`,
  plus: (x, y, s) => `M${x - s * 1.2},${y}h${2.4 * s}M${x},${y - s * 1.2}v${2.4 * s}`,
  down: (x, y, s) => `M${x},${y + s * 1.2}l${s * 1.1},${-s * 2}h${-s * 2.2}Z`,
  star: (x, y, s) => "M" + Array.from({ length: 10 }, (_, k) => {
    const radius = k % 2 ? s * 0.7 : s * 1.7, angle = Math.PI * (k / 5 - 0.5);
    return `${(x + radius * Math.cos(angle)).toFixed(1)},${(y + radius * Math.sin(angle)).toFixed(1)}`;
  }).join("L") + "Z",
};
function mark(name, x, y, size, colour) {
  const open = name === "cross" || name === "plus";
  return svg("path", { d: MARKS[name](x, y, size), fill: open ? "none" : colour, stroke: colour, "stroke-width": open ? 1.8 : 0.8 });
}
function swatch(style, marked) {
  return svg("svg", { width: 30, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 0, y1: 5, x2: 30, y2: 5, stroke: style.colour, "stroke-width": 2.5, "stroke-dasharray": DASHES[style.dash] }),
    marked ? mark(style.marker, 15, 5, 3.5, style.colour) : null);
}
/* series: {name, style, x, y, std}; options: x, y (axis titles), log, marks, height */
function lines(series, options) {
  return (width, label) => {
    const height = options.height ?? 290, left = 54, right = 10, top = 10, bottom = 40;
    const xs = series.flatMap((each) => each.x);
    const ys = series.flatMap((each) => each.y.flatMap((value, place) => {
      if (!known(value)) return [];
      const deviation = each.std?.[place] ?? 0;
      return options.marks ? [value - deviation, value + deviation] : [value];
    }));
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label, tabindex: "0" });
    if (!ys.length) { figure.append(svg("text", { x: left, y: height / 2 }, "no defined score")); return figure; }
    const scale = options.log ? Math.log10 : (value) => value;
    const [x0, x1] = options.marks ? bounds(xs.map(scale), 0.06) : [Math.min(...xs), Math.max(...xs)];
    const [y0, y1] = bounds(ys, 0.05);
    const px = (value) => left + (x1 > x0 ? (scale(value) - x0) / (x1 - x0) : 0.5) * (width - left - right);
    const py = (value) => height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom);
    for (const value of ticks(y0, y1, 5)) figure.append(
      svg("line", { class: "rule", x1: left, x2: width - right, y1: py(value), y2: py(value) }),
      svg("text", { class: "soft", x: left - 5, y: py(value) + 4, "text-anchor": "end" }, String(value)));
    const places = options.log || options.marks ? unique(xs).sort((a, b) => a - b) : ticks(x0, x1, Math.max(2, width / 90));
    let last = -Infinity;
    for (const value of places) {
      const at = px(value);
      figure.append(svg("line", { class: "axis", x1: at, x2: at, y1: height - bottom, y2: height - bottom + 4 }));
      if (at - last < 26) continue;
      last = at;
      figure.append(svg("text", { class: "soft", x: at, y: height - bottom + 17, "text-anchor": "middle" }, String(value)));
    }
    figure.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      svg("text", { class: "soft", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, options.x),
      svg("text", { class: "soft", transform: `translate(11 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle" }, options.y));
    const clip = svg("g");
    for (const each of series) {
      if (each.std) {
        const there = each.x.map((_, place) => place).filter((place) => known(each.y[place]) && known(each.std[place]));
        const edge = (sign) => there.map((place) =>
          `${px(each.x[place]).toFixed(1)},${Math.min(height - bottom, Math.max(top, py(each.y[place] + sign * each.std[place]))).toFixed(1)}`);
        if (there.length > 1) clip.append(svg("polygon", { points: [...edge(1), ...edge(-1).reverse()].join(" "), fill: each.style.colour, opacity: 0.16 }));
      }
    }
    for (const each of series) {
      let path = "", pen = false;
      each.x.forEach((value, place) => {
        if (!known(each.y[place])) { pen = false; return; }
        path += `${pen ? "L" : "M"}${px(value).toFixed(1)},${py(each.y[place]).toFixed(1)}`;
        pen = true;
      });
      clip.append(svg("path", { d: path, fill: "none", stroke: each.style.colour, "stroke-width": 2, "stroke-dasharray": DASHES[each.style.dash] }));
      if (options.marks || each.x.length === 1) each.x.forEach((value, place) => {
        if (!known(each.y[place])) return;
        clip.append(mark(each.style.marker, px(value), py(each.y[place]), 4, each.style.colour));
        if (each.ring?.[place]) clip.append(svg("circle", { cx: px(value), cy: py(each.y[place]), r: 8, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
      });
    }
    figure.append(clip);
    guide(figure, series, options, { px, left, right: width - right, top, bottom: height - bottom, width });
    return figure;
  };
}
/* The values under the pointer, or under a guide moved by the arrow keys. */
function guide(figure, series, options, box) {
  const steps = unique(series.flatMap((each) => each.x)).sort((a, b) => a - b);
  const rule = svg("line", { class: "axis", y1: box.top, y2: box.bottom, visibility: "hidden", "stroke-dasharray": "2 2" });
  figure.append(rule);
  let tip = null, place = -1;
  const hide = () => { rule.setAttribute("visibility", "hidden"); tip?.remove(); tip = null; };
  const show = (next) => {
    place = Math.max(0, Math.min(steps.length - 1, next));
    const at = box.px(steps[place]);
    rule.setAttribute("x1", at); rule.setAttribute("x2", at); rule.setAttribute("visibility", "visible");
    const values = series.map((each) => [each, each.x.indexOf(steps[place])])
      .filter(([each, where]) => where >= 0 && known(each.y[where]))
      .sort(([a, p], [b, q]) => b.y[q] - a.y[p]);
    tip?.remove();
    tip = el("div", { class: "tip", role: "status" }, el("b", {}, `${options.unit ?? options.x} ${steps[place]}`),
      values.map(([each, where]) => el("div", {}, `${each.name}: ${score(each.y[where], each.std?.[where])}`)));
    if (at > box.width / 2) tip.style.right = `${box.width - at + 8}px`; else tip.style.left = `${at + 8}px`;
    figure.parentNode?.parentNode?.append(tip);
  };
  figure.addEventListener("pointermove", (event) => {
    const inside = event.clientX - figure.getBoundingClientRect().left;
    if (inside < box.left || inside > box.right) { hide(); return; }
    const distances = steps.map((step) => Math.abs(box.px(step) - inside));
    show(distances.indexOf(Math.min(...distances)));
  });
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (move !== undefined) { event.preventDefault(); show(place < 0 && Math.abs(move) < 1e9 ? 0 : place + move); }
    if (event.key === "Escape") hide();
  });
}

// Stacked bars: items {name, parts: {name: value}, mark, text}

function bars(items, colours, options) {
  return (width, label) => {
    const names = Object.keys(colours);
    const narrow = width < 560, left = narrow ? 8 : 190, right = 78, step = narrow ? 40 : 26, bottom = 34;
    const height = items.length * step + bottom + 6;
    const greatest = Math.max(...items.map((item) => Math.max(sum(Object.values(item.parts)), item.mark ?? 0))) || 1;
    const px = (value) => left + value / greatest * (width - left - right);
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    for (const value of ticks(0, greatest, Math.max(3, width / 140))) figure.append(
      svg("line", { class: "rule", x1: px(value), x2: px(value), y1: 0, y2: height - bottom }),
      svg("text", { class: "soft", x: px(value), y: height - bottom + 14, "text-anchor": "middle" }, figure3(value)));
    figure.append(svg("text", { class: "soft", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, options.x));
    items.forEach((item, place) => {
      const y = place * step + (narrow ? 18 : 4), thick = narrow ? 16 : 18;
      figure.append(svg("text", narrow ? { x: left, y: y - 4 } : { x: left - 6, y: y + 13, "text-anchor": "end" }, short(item.name, narrow ? 46 : 26)));
      let start = 0;
      for (const name of names) {
        const value = item.parts[name];
        if (!value) continue;
        figure.append(svg("rect", { class: "gap", x: px(start), y, width: Math.max(0.5, px(start + value) - px(start)), height: thick, fill: colours[name] },
          svg("title", {}, `${item.name}, ${name}: ${figure3(value)}`)));
        start += value;
      }
      if (known(item.mark)) figure.append(svg("path", { d: MARKS.diamond(px(item.mark), y + thick / 2, 5), fill: "none", stroke: "currentColor", "stroke-width": 1.6 }, svg("title", {}, `published: ${item.mark}`)));
      figure.append(svg("text", { x: Math.max(px(start), known(item.mark) ? px(item.mark) : 0) + 8, y: y + 13 }, item.text ?? figure3(start)));
    });
    return figure;
  };
}
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
function key(colours) {
  return el("ul", { class: "legend" }, Object.entries(colours).map(([name, colour]) => el("li", {}, el("span", { class: "key" },
    svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { width: 12, height: 12, fill: colour })), name))));
}

// Statistics

function chance(value) { return !known(value) ? "–" : value < 0.001 ? "< 0.001" : value.toFixed(3); }
function statistics() {
  const place = part("statistics");
  if (!place) return;
  const table = tables[0], found = data.statistics;
  const body = el("div");
  const show = (reference) => {
    const list = found.against[reference];
    body.replaceChildren(list.length ? scroller("Comparisons", grid(
      ["method", "pairs", "difference", "95 % interval", "higher / lower", "p", "p (Holm)", "p over scenarios", "verdict"],
      list.map((each) => [table.rows[each.row].name, `${each.pairs} in ${each.scenarios}`, signed(each.difference),
        known(each.low) ? `${signed(each.low)} to ${signed(each.high)}` : "–", `${each.wins} / ${each.losses}`,
        chance(each.p), chance(each.holm), chance(each.p_scenarios),
        !known(each.holm) ? "too few pairs" : each.holm >= 0.05 ? "not distinguishable" : each.difference > 0 ? "higher" : "lower"])))
      : el("p", {}, "Nothing to compare with."));
  };
  place.append(el("div", { class: "controls" }, select("reference", table.rows.map((row, r) => [r, row.name]), found.reference, show)), body);
  show(found.reference);
  const ranks = found.ranking;
  if (!ranks) {
    place.append(el("p", {}, "No Friedman test: it needs three methods that have every seed in two scenarios."));
    return;
  }
  const left = ranks.left_out.length ? ` Left out, because they lack results: ${ranks.left_out.map((r) => table.rows[r].name).join(", ")}.` : "";
  place.append(el("h3", {}, "Average ranks and critical difference"),
    el("p", {}, `Friedman over ${ranks.scenarios} scenarios: χ² = ${fixed(ranks.chi2)}, p ${known(ranks.p) && ranks.p < 0.001 ? "" : "= "}${chance(ranks.p)}; Iman–Davenport F = ${fixed(ranks.f)}, p ${known(ranks.p_f) && ranks.p_f < 0.001 ? "" : "= "}${chance(ranks.p_f)}. Methods joined by a bar differ by less than the critical difference ${fixed(ranks.critical)} (Nemenyi, 0.05).${left}`),
    picture("Average rank of every method; bars join methods that cannot be told apart", ladder(table, ranks)));
}
function ladder(table, ranks) {
  return (width, label) => {
    const order = [...ranks.ranks].sort((a, b) => a[1] - b[1]);
    const count = order.length, half = Math.ceil(count / 2);
    const narrow = width < 560, side = narrow ? 8 : 200;
    const top = 56 + ranks.groups.length * 9, step = 20;
    const height = top + (narrow ? count : half) * step + 12;
    const px = (rank) => side + 10 + (rank - 1) / Math.max(1, count - 1) * (width - 2 * side - 20);
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    figure.append(svg("line", { class: "axis", x1: px(1), x2: px(count), y1: 40, y2: 40 }));
    const every = Math.max(1, Math.ceil(26 * count / Math.max(1, width - 2 * side)));
    for (let rank = 1; rank <= count; rank += 1) {
      figure.append(svg("line", { class: "axis", x1: px(rank), x2: px(rank), y1: 35, y2: 40 }));
      if ((rank - 1) % every === 0) figure.append(svg("text", { class: "soft", x: px(rank), y: 31, "text-anchor": "middle" }, String(rank)));
    }
    const wide = Math.min(px(1 + ranks.critical), px(count));
    figure.append(svg("path", { d: `M${px(1)},8v8M${px(1)},12H${wide}M${wide},8v8`, class: "axis", "stroke-width": 2 }),
      narrow ? "" : svg("text", { x: wide + 6, y: 16 }, `critical difference ${fixed(ranks.critical)}`));
    order.forEach(([r, rank], place) => {
      const left = place < half, y = narrow ? top + place * step : top + (left ? place : count - 1 - place) * step;
      const text = `${short(table.rows[r].name, 24)} ${fixed(rank)}`;
      if (narrow) {
        figure.append(svg("circle", { cx: px(rank), cy: 40, r: 3, fill: "currentColor" }), svg("text", { x: 4, y: y + 4 }, `${place + 1}. ${text}`));
        return;
      }
      const edge = left ? side : width - side;
      figure.append(svg("path", { d: `M${px(rank)},40V${y}H${edge}`, class: "axis" }),
        svg("text", { x: left ? edge - 5 : edge + 5, y: y + 4, "text-anchor": left ? "end" : "start" }, text));
    });
    ranks.groups.forEach((group, place) => {
      const values = group.map((r) => order.find(([each]) => each === r)[1]);
      const y = 47 + place * 9;
      figure.append(svg("line", { x1: px(Math.min(...values)) - 4, x2: px(Math.max(...values)) + 4, y1: y, y2: y, stroke: "currentColor", "stroke-width": 4, "stroke-linecap": "round" }));
    });
    return figure;
  };
}

// Differences: a heat map of scenarios

function tinted(value, most) {
  if (!known(value)) return "";
  const strength = Math.min(1, Math.abs(value) / (most || 1)) * 0.55;
  return `background: rgba(var(--${value >= 0 ? "more" : "less"}), ${strength.toFixed(3)})`;
}
function differences() {
  const place = part("differences");
  if (!place) return;
  const table = tables[0];
  const sets = unique(table.columns.map((column) => column.set));
  const settings = unique(table.columns.map((column) => [column.partition, column.clients, column.detail].filter(Boolean).join(" · ")));
  const body = el("div", { class: settings.length > 3 ? null : "pair" });
  const at = (set, setting) => table.columns.findIndex((column) => column.set === set
    && [column.partition, column.clients, column.detail].filter(Boolean).join(" · ") === setting);
  const map = (title, caption, value) => {
    const numbers = sets.map((set) => settings.map((setting) => { const c = at(set, setting); return c < 0 ? null : value(c); }));
    const flat = numbers.flat().filter(known).map(({ by }) => by);
    const most = Math.max(...flat.map(Math.abs), 0);
    const above = flat.filter((by) => by >= 0).length;
    return el("div", {}, el("h3", {}, title), flat.length
      ? el("p", { class: "soft" }, `${caption} ${flat.length} scenarios: ${above} at or above, ${flat.length - above} below, mean ${signed(mean(flat))}.`)
      : el("p", { class: "soft" }, `${caption} None here.`),
    flat.length ? scroller(title, el("table", { class: "dense heat" },
      el("thead", {}, el("tr", {}, el("th", { class: "left", scope: "col" }, "data set"), settings.map((setting) => el("th", { scope: "col" }, setting)))),
      el("tbody", {}, sets.map((set, row) => el("tr", {}, el("th", { class: "left", scope: "row" }, set), numbers[row].map((found) =>
        known(found) ? el("td", { style: tinted(found.by, most) }, signed(found.by), found.note ? el("small", {}, found.note) : null)
          : el("td", { class: "none" }, "–"))))))) : null);
  };
  const show = (r) => body.replaceChildren(
    map("minus published", "Points of % against the figure printed for the same method.", (c) => {
      const cell = table.cells[`${r}-${c}`];
      return cell && known(cell.published) && known(cell.mean) ? { by: cell.mean - cell.published } : null;
    }),
    map("minus the best rival measured here", "Points of % against the best other method that has every seed.", (c) => {
      const cell = table.cells[`${r}-${c}`];
      if (!cell || !known(cell.mean)) return null;
      const rivals = table.rows.map((row, other) => [row.name, table.cells[`${other}-${c}`], other])
        .filter(([, rival, other]) => other !== Number(r) && rival?.complete && known(rival.mean));
      if (!rivals.length) return null;
      const best = rivals.reduce((a, b) => (b[1].mean > a[1].mean ? b : a));
      return { by: cell.mean - best[1].mean, note: short(best[0], 18) };
    }));
  place.append(el("div", { class: "controls" }, select("method", table.rows.map((row, r) => [r, row.name]), data.statistics.reference, show)), body);
  show(data.statistics.reference);
}

// Convergence

// As `fedatlas.dashboards.figures.usual_rounds`: a method that goes on alone would squeeze the others.
function usualRounds(lengths) { return lengths.sort((a, b) => a - b)[Math.floor(lengths.length / 2)] ?? 0; }
function convergence() {
  const off = new Set();
  let whole = false;
  byScenario("convergence", (table, c) => members(table, c, table.curves).length > 0, (table, c) => {
    const found = members(table, c, table.curves);
    const panels = el("div", { class: "pair" });
    const metric = METRICS[table.columns[c].metric] ?? table.columns[c].metric;
    const rounds = (each) => each.rounds ?? each.test.map((_, place) => place + 1);
    const lengths = found.map(([, , each]) => rounds(each).at(-1)), longest = Math.max(...lengths);
    const draw = () => {
      const visible = found.filter(([row]) => !off.has(row.name));
      const end = whole ? longest : usualRounds(visible.map(([, , each]) => rounds(each).at(-1)));
      const beyond = visible.filter(([, , each]) => rounds(each).at(-1) > end);
      const note = beyond.length ? `Not shown: ${beyond.map(([row, , each]) => `${row.name} from round ${end + 1} to ${rounds(each).at(-1)}`).join(", ")}.` : null;
      panels.replaceChildren(...[["test", "test"], ["val", "validation"]].map(([name, title]) => {
        const series = visible.map(([row, , each]) => {
          const x = rounds(each).filter((round) => round <= end);
          const part = (values) => values?.slice(0, x.length).map((value) => (known(value) ? value / 100 : null));
          return { name: row.name, style: row, x, y: part(each[name]), std: part(each[`${name}_std`]) };
        });
        return picture(`${title} score over rounds, ${table.columns[c].title}`,
          lines(series, { x: "communication round", y: `${title} ${metric} (%)`, unit: "round" }), note);
      }));
    };
    draw();
    const ends = new Set(lengths).size > 1 ? el("div", { class: "controls" },
      tick(`all rounds, to ${longest}`, whole, (on) => { whole = on; draw(); })) : null;
    const legend = el("ul", { class: "legend" }, found.map(([row]) => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(!off.has(row.name)), onclick: (event) => {
        const button = event.currentTarget, on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        on ? off.delete(row.name) : off.add(row.name);
        draw();
      } }, swatch(row), row.name))));
    const efforts = members(table, c, table.effort);
    return [ends, legend, panels, efforts.length ? scroller("Rounds and MB to 95 % of the score", grid(
      ["method", "rounds to 95 %", "MB until then", "n"],
      efforts.map(([row, r, [rounds, sent]]) => [row.name, String(rounds), figure3(sent), String(table.curves[`${r}-${c}`].n)]))) : null];
  });
}

// Sensitivity and ablation

function sensitivity() {
  const place = part("sensitivity");
  if (!place) return;
  const style = { colour: "#0072B2", dash: "solid", marker: "circle" };
  for (const scenario of unique(data.sensitivity.map((each) => each.scenario))) {
    place.append(el("h3", {}, scenario), el("div", { class: "pair" }, data.sensitivity.filter((each) => each.scenario === scenario).map((each) => {
      const values = each.points.map(([value]) => value);
      const log = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 8;
      const series = [{ name: each.algorithm, style, x: values, y: each.points.map(([, score]) => score),
        std: each.points.some(([, , std]) => known(std)) ? each.points.map(([, , std]) => std) : undefined,
        ring: each.points.map(([, , , , base]) => base) }];
      return picture(`${each.algorithm}: score under values of ${each.option}`, lines(series, {
        x: each.option + (log ? " (logarithmic)" : ""), unit: each.option, y: `test ${METRICS[each.metric] ?? each.metric} (%)`, log, marks: true, height: 230,
      }), `${each.option}: ${each.points.map(([value, mean_, std, n]) => `${value}: ${score(mean_, std)} (n = ${n})`).join("; ")}. A ring marks the reference.`);
    })));
  }
}
function ablation() {
  const place = part("ablation");
  if (!place) return;
  for (const each of data.ablation) {
    const whole = each.bars[0];
    place.append(el("h3", {}, each.scenario), picture(`Scores without parts, ${each.scenario}`, drops(each)),
      scroller(`Ablation, ${each.scenario}`, grid(
        ["row", "score %", "against reference", "published", "published against reference", "what differs"],
        each.bars.map((bar) => [bar.name, score(bar.mean, bar.std), bar === whole ? "–" : signed(-bar.drop),
          fixed(bar.published), known(bar.published_drop) ? signed(-bar.published_drop) : "–", bar.options || (bar === whole ? "" : "another method")]))));
  }
}
function drops(each) {
  return (width, label) => {
    const narrow = width < 560, left = narrow ? 8 : 190, right = 96, step = narrow ? 44 : 30, bottom = 34;
    const height = each.bars.length * step + bottom;
    const ends = each.bars.flatMap((bar) => [bar.mean - (bar.std ?? 0), bar.mean + (bar.std ?? 0)]);
    const low = Math.max(0, Math.min(...ends) - (Math.max(...ends) - Math.min(...ends)) * 0.6 - 0.5), high = Math.max(...ends) + 0.1;
    const px = (value) => left + (value - low) / (high - low) * (width - left - right);
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    for (const value of ticks(low, high, Math.max(3, width / 140))) figure.append(
      svg("line", { class: "rule", x1: px(value), x2: px(value), y1: 0, y2: height - bottom }),
      svg("text", { class: "soft", x: px(value), y: height - bottom + 14, "text-anchor": "middle" }, String(value)));
    figure.append(svg("text", { class: "soft", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" },
      `test ${METRICS[each.metric] ?? each.metric} (%)${low > 0 ? `, axis from ${fixed(low, 1)}` : ""}`));
    each.bars.forEach((bar, place) => {
      const y = place * step + (narrow ? 19 : 5), thick = 18;
      figure.append(svg("text", narrow ? { x: left, y: y - 4 } : { x: left - 6, y: y + 13, "text-anchor": "end" }, short(bar.name, narrow ? 46 : 26)),
        svg("rect", { x: left, y, width: Math.max(1, px(bar.mean) - left), height: thick, fill: place ? "#56B4E9" : "#0072B2" }));
      // With a rim of the page's colour, to be seen on the bar and beside it.
      if (known(bar.std)) for (const rim of ["rim", "spread"]) figure.append(svg("path", { class: rim,
        d: `M${px(bar.mean - bar.std)},${y + thick / 2}H${px(bar.mean + bar.std)}M${px(bar.mean - bar.std)},${y + 4}v10M${px(bar.mean + bar.std)},${y + 4}v10` }));
      figure.append(svg("text", { x: px(bar.mean + (bar.std ?? 0)) + 7, y: y + 13 }, place ? `${fixed(bar.mean)} (${signed(-bar.drop)})` : fixed(bar.mean)));
    });
    return figure;
  };
}

// Cost

function cost() {
  byScenario("cost", (table, c) => members(table, c, table.cost).length > 0, (table, c) => {
    const found = members(table, c, table.cost);
    const parts = (name) => unique(found.flatMap(([, , each]) => Object.keys(each[name])));
    const phases = Object.fromEntries(Object.entries(data.phases).filter(([name]) => parts("seconds").includes(name)));
    const anyPaper = found.some(([, , each]) => known(each.paper));
    const fields = Object.fromEntries(unique([...parts("up"), ...parts("down")]).map((name, place) => [name, data.field_palette[place % data.field_palette.length]]));
    const title = table.columns[c].title;
    const ways = Object.keys(fields).flatMap((name) => ["up", "down"].filter((way) => parts(way).includes(name)).map((way) => [name, way]));
    const base = found.find(([row, , each]) => row.algorithm === "fedavg" && known(each.paper))?.[2];
    const ratio = (value, other) => (known(value) && known(other) && other ? `${figure3(value / other)} ×` : "–");
    const moved = (name) => bars(found.map(([row, , each]) => ({ name: row.name, parts: each[name] })), fields, { x: "MB per round, all clients" });
    return [
      el("h3", {}, "Seconds per round by phase"), key(phases),
      picture(`Seconds per round by phase, ${title}`, bars(found.map(([row, , each]) => ({
        name: row.name, parts: each.seconds,
      })), phases, { x: "seconds per round" })),
      scroller("Seconds per round", grid(
        ["method", "round", ...Object.keys(phases), "before round 1", ...(base ? ["of FedAvg's"] : []), ...(anyPaper ? ["paper's table 7"] : []), ...(base ? ["of its FedAvg's"] : [])],
        found.map(([row, , each]) => [row.name, figure3(each.round), ...Object.keys(phases).map((name) => figure3(each.seconds[name] ?? null)),
          each.before ? figure3(each.before) : "–", ...(base ? [ratio(each.round, base.round)] : []), ...(anyPaper ? [figure3(each.paper)] : []), ...(base ? [ratio(each.paper, base.paper)] : [])]))),
      Object.keys(fields).length ? el("h3", {}, "Bytes per round by field") : null,
      Object.keys(fields).length ? key(fields) : null,
      Object.keys(fields).length ? el("div", { class: "pair" },
        el("div", {}, el("h3", {}, "up"), picture(`MB sent by clients, ${title}`, moved("up"))),
        el("div", {}, el("h3", {}, "down"), picture(`MB sent to clients, ${title}`, moved("down")))) : null,
      Object.keys(fields).length ? scroller("MB per round by field", grid(
        ["method", ...ways.map(([name, way]) => `${name} ${way}`)],
        found.map(([row, , each]) => [row.name, ...ways.map(([name, way]) => figure3(each[way][name] ?? null))]))) : null,
    ];
  });
}

// Clients

function clients() {
  byScenario("clients", (table, c) => members(table, c, table.clients).length > 0 || table.federation[c], (table, c) => {
    const found = members(table, c, table.clients), held = table.federation[c];
    const values = found.flatMap(([, , scores]) => scores).filter(known);
    const low = Math.min(...values), high = Math.max(...values);
    const shade = (value) => (known(value) && high > low ? `background: rgba(var(--level), ${((value - low) / (high - low) * 0.55).toFixed(3)})` : "");
    const count = Math.max(0, ...found.map(([, , scores]) => scores.length));
    const numbers = Array.from({ length: count }, (_, m) => m);
    const matrices = members(table, c, table.mixing);
    return [
      found.length ? el("h3", {}, "Test score by client (%), mean over seeds at the best round") : null,
      found.length ? scroller("Score by client", el("table", { class: "dense heat" },
        el("thead", {}, el("tr", {}, el("th", { class: "left", scope: "col" }, "method"), el("th", { scope: "col" }, "worst decile"), numbers.map((m) => el("th", { scope: "col" }, String(m))))),
        el("tbody", {}, found.map(([row, r, scores]) => el("tr", {}, el("th", { class: "left", scope: "row" }, row.name),
          el("td", {}, fixed(table.cells[`${r}-${c}`].worst, 1)), numbers.map((m) => el("td", { style: shade(scores[m]), class: known(scores[m]) ? null : "none" }, fixed(scores[m], 1)))))))) : null,
      held ? el("h3", {}, "What the clients hold") : el("p", { class: "soft" }, "What the clients hold was not recorded by these runs."),
      held ? scroller("Clients", grid(["client", "nodes", "edges", "train", "validation", "test", "edge homophily", "nodes by class"],
        held.map((each) => [String(each.client), String(each.nodes), String(each.edges), String(each.train), String(each.validation), String(each.test),
          fixed(each.homophily, 3), histogram(each, held)]))) : null,
      ...(matrices.length ? mixing(table, matrices) : []),
      !matrices.length ? el("p", { class: "soft" }, "No run of this scenario has recorded who takes how much from whom.") : null,
    ];
  });
}
function histogram(each, held) {
  const most = Math.max(...held.flatMap((client) => client.histogram)), step = 11, height = 30;
  const text = each.histogram.map((count, label) => `class ${label}: ${count}`).join(", ");
  return svg("svg", { width: Math.max(20, each.histogram.length * step), height, role: "img", "aria-label": text }, svg("title", {}, text),
    each.histogram.map((count, label) => svg("rect", { x: label * step, width: step - 2, y: height - 1 - count / most * (height - 2), height: Math.max(1, count / most * (height - 2)), fill: "#0072B2" })));
}
function mixing(table, matrices) {
  const body = el("div"), controls = el("div", { class: "controls" });
  let chosen = matrices[0];
  const show = (place) => {
    const [row, , each] = chosen, size = each.size;
    const bytes = Uint8Array.from(atob(each.matrices[place]), (letter) => letter.charCodeAt(0));
    const value = (i, j) => bytes[i * size + j] / 255 * each.greatest;
    body.replaceChildren(picture(`Shares of ${row.name} after round ${each.rounds[place]}`, (width, label) => {
      const side = Math.min(560, width), cell = (side - 30) / size;
      const figure = svg("svg", { viewBox: `0 0 ${side} ${side}`, height: side, role: "img", "aria-label": label, style: `max-width: ${side}px` });
      for (let i = 0; i < size; i += 1) {
        if (size <= 25 || i % 5 === 0) figure.append(svg("text", { class: "soft", x: 24, y: 20 + (i + 0.5) * cell + 4, "text-anchor": "end" }, String(i)),
          svg("text", { class: "soft", x: 28 + (i + 0.5) * cell, y: 14, "text-anchor": "middle" }, String(i)));
        for (let j = 0; j < size; j += 1) {
          figure.append(svg("rect", { class: "gap", x: 28 + j * cell, y: 20 + i * cell, width: cell, height: cell, style: `fill: rgba(var(--more), ${(0.04 + 0.6 * value(i, j) / each.greatest).toFixed(3)})` },
            svg("title", {}, `client ${i} takes ${value(i, j).toFixed(3)} from client ${j}`)));
          if (cell >= 30) figure.append(svg("text", { x: 28 + (j + 0.5) * cell, y: 20 + (i + 0.5) * cell + 4, "text-anchor": "middle" }, value(i, j).toFixed(2)));
        }
      }
      return figure;
    }, `${row.name}, seed ${each.seed}, after round ${each.rounds[place]}: row i is what client i takes from each client j. Shares from 0 to ${fixed(each.greatest, 3)}, kept in 256 steps.`));
  };
  const arrange = () => {
    const [, , each] = chosen, last = each.rounds.length - 1;
    const label = el("span", {}, `round ${each.rounds[last]}`);
    const slider = el("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": "round", oninput: () => {
      label.textContent = `round ${each.rounds[slider.value]}`;
      slider.setAttribute("aria-valuetext", label.textContent);
      show(Number(slider.value));
    } });
    controls.replaceChildren(select("method", matrices.map(([row], place) => [place, row.name]), matrices.indexOf(chosen), (place) => { chosen = matrices[place]; arrange(); }),
      el("label", {}, label, slider));
    show(last);
  };
  arrange();
  return [el("h3", {}, "Who takes how much from whom"), controls, body,
    table.mixing_left_out.length ? el("p", { class: "soft" }, `Not on this page for its size: ${table.mixing_left_out.join("; ")}.`) : null];
}

// Case study

function casestudy() {
  const place = part("casestudy");
  if (!place) return;
  const body = el("div"), state = { trial: 0, method: "pca" };
  const show = () => {
    const trial = data.casestudy[state.trial];
    body.replaceChildren(...trial.panels.filter((panel) => panel.method === state.method).map((panel) => el("div", {},
      el("h3", {}, panel.title),
      el("div", { class: "pair" }, panel.rounds.map((round) => picture(`${panel.title}, ${round.name}`, scatter(round, panel), `${round.name}. ${panel.caption}`))))));
  };
  place.append(el("div", { class: "controls" },
    select("trial", data.casestudy.map((trial, number) => [number, trial.title]), 0, (value) => { state.trial = value; show(); }),
    select("projection", [["pca", "PCA"], ["tsne", "t-SNE"]], "pca", (value) => { state.method = value; show(); })), body);
  show();
}
const SHAPES = ["circle", "square", "triangle", "diamond", "cross", "plus", "down"];
function scatter(round, panel) {
  return (width, label) => {
    const height = Math.min(430, Math.max(260, width * 0.8)), edge = 12;
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height + 22}`, height: height + 22, role: "img", "aria-label": label });
    const points = round.groups.flatMap((group) => group.points);
    const [x0, x1] = bounds(points.map(([x]) => x), 0.02), [y0, y1] = bounds(points.map(([, y]) => y), 0.02);
    const px = (x) => edge + (x - x0) / (x1 - x0) * (width - 2 * edge), py = (y) => height - edge - (y - y0) / (y1 - y0) * (height - 2 * edge);
    figure.append(svg("rect", { class: "rule", x: 1, y: 1, width: width - 2, height: height - 2 }));
    for (const group of round.groups) {
      const size = { nodes: 2.6, means: 4.4, anchors: 7, templates: 5.5, radials: 2.6 }[group.kind];
      for (const [x, y, label_] of group.points) {
        const colour = known(label_) ? data.palette[label_ % data.palette.length] : group.kind === "radials" ? "#8C8C8C" : "#D55E00";
        const shape = group.kind === "anchors" || group.kind === "templates" ? "star" : SHAPES[(known(label_) ? label_ : 0) % SHAPES.length];
        const drawn = mark(shape, px(x), py(y), size, colour);
        if (group.kind === "nodes" || group.kind === "radials") drawn.setAttribute("opacity", "0.5");
        else if (shape === "cross" || shape === "plus") drawn.setAttribute("stroke-width", 3);
        else { drawn.setAttribute("stroke", "currentColor"); drawn.setAttribute("stroke-width", group.kind === "means" ? 1 : 1.4); }
        drawn.append(svg("title", {}, known(label_) ? `${group.kind}, class ${label_}` : group.kind));
        figure.append(drawn);
      }
    }
    figure.append(svg("text", { class: "soft", x: 2, y: height + 16 }, panel.axes));
    return figure;
  };
}

// Provenance

function provenance() {
  const place = part("provenance");
  if (!place) return;
  const { texts, lines: trials } = data.provenance, page = 50;
  const found = trials.map((line) => [texts[line[0]], texts[line[1]], String(line[2]), line[3], line[4], ...line.slice(5).map((each) => texts[each])]);
  let wanted = found, start = 0;
  const body = el("div"), count = el("span", { role: "status" });
  const show = () => {
    count.textContent = wanted.length ? `${start + 1} to ${Math.min(start + page, wanted.length)} of ${wanted.length}` : "none";
    body.replaceChildren(scroller("Provenance of every trial", grid(
      ["method", "scenario", "seed", "run", "fingerprint", "commit", "version", "version of the method", "data", "sha256", "placement", "hardware", "Python"],
      wanted.slice(start, start + page).map((line) => line.map((text, column) => column === 3 ? link(runPath(text), text, { class: "mono" })
        : [4, 5, 9].includes(column) ? el("span", { class: "mono" }, text) : text)), { left: 2 })));
  };
  const box = el("input", { type: "search", oninput: () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    wanted = found.filter((line) => { const text = line.join(" ").toLowerCase(); return words.every((word) => text.includes(word)); });
    start = 0; show();
  } });
  const move = (by) => () => { if (start + by >= 0 && start + by < wanted.length) { start += by; show(); } };
  place.append(el("div", { class: "controls" }, el("label", {}, "search", box),
    el("button", { type: "button", class: "plain", onclick: move(-page) }, "Previous"),
    el("button", { type: "button", class: "plain", onclick: move(page) }, "Next"), count), body);
  show();
}

for (const build of [filters, statistics, differences, convergence, sensitivity, ablation, cost, clients, casestudy, provenance]) build();
document.documentElement.dataset.ready = "true";
})();
