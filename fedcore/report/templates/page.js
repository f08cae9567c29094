// Makes the page's charts, slider and tables from the numbers in #numbers. It decides nothing: what to do under each
// budget, ranks and fronts were computed before. Without it, the page shows tables and pictures.
"use strict";

const numbers = JSON.parse(document.getElementById("numbers").textContent);
// A value, and a change of it, of the metric that decides in a setting: of an error the change is negative where it is better.
const shown = ({ per }, value, digits = 1) => per === 100 ? (100 * value).toFixed(digits) + "%" : String(Number((per * value).toPrecision(3)));
const change = ({ per }, value) => (value < 0 ? "−" : "+") + (per === 100 ? Math.abs(100 * value).toFixed(1) : Number((per * Math.abs(value)).toPrecision(3)));

// Elements

function add(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function clear(svg, width, height) {
  svg.replaceChildren();
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
}

// A text beside the pointer, or below the element that has the keyboard's focus.
const tip = add(document.body, "div", { class: "tip", role: "status", hidden: "" });

function say(element, lines) {
  const show = (event) => {
    tip.replaceChildren();
    lines.forEach((line, i) => add(tip, i ? "div" : "strong", {}, line));
    tip.hidden = false;
    const box = element.getBoundingClientRect();
    const [x, y] = event.type === "focus" ? [box.right, box.bottom] : [event.clientX, event.clientY];
    const left = Math.min(x + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(left, 8) + window.scrollX + "px";
    tip.style.top = y + 14 + window.scrollY + "px";
  };
  element.setAttribute("tabindex", "0");
  element.setAttribute("aria-label", lines.join(", "));
  for (const type of ["pointerenter", "pointermove", "focus"]) element.addEventListener(type, show);
  for (const type of ["pointerleave", "blur"]) element.addEventListener(type, () => { tip.hidden = true; });
}

// Places for labels: beside its point, and no label over another or over a point; that of the answer's method always

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
const over = (x, y, w, taken, lines, width) => ({ x: Math.max(2, Math.min(x - w / 2, width - w - 2)), y: Math.max(y - 22, 0), w, h: 14 });

function place(x, y, width, taken, lines, bounds, must) {
  const near = [[9, 4], [-9 - width, 4], [-width / 2, -10], [-width / 2, 19], [8, -7], [8, 15], [-8 - width, -7], [-8 - width, 15]];
  const far = [26, 42, 58, 74].flatMap((d) => [[10, -d], [10, d], [-10 - width, -d], [-10 - width, d], [d, -d], [-d - width, -d]]);
  const find = (places, avoided) => {
    for (const [dx, dy] of places) {
      const box = { x: x + dx, y: y + dy - 11, w: width, h: 14 };
      const inside = box.x >= bounds.x && box.y >= bounds.y && box.x + box.w <= bounds.x + bounds.w && box.y + box.h <= bounds.y + bounds.h;
      if (inside && !avoided.some((other) => overlap(box, other))) return box;
    }
    return null;
  };
  return find(near, taken.concat(lines)) || find(must ? near.concat(far) : near, taken);
}

// Accuracy against bytes

function drawTradeoff(svg, setting, split, step, picked, pick) {
  const rows = setting.rows.filter((row) => row[split]);
  const width = Math.max(svg.parentElement.clientWidth, 260), height = Math.round(Math.min(Math.max(width * 0.66, 300), 420));
  const area = { x: 46, y: 12, w: width - 58, h: height - 58 };
  clear(svg, width, height);

  const some = rows.filter((row) => !row.control).length ? rows.filter((row) => !row.control) : rows;
  let low = Math.min(...some.map((row) => row[split].mean - (row[split].margin || 0)));
  let high = Math.max(...some.map((row) => row[split].mean + (row[split].margin || 0)));
  const room = Math.max(0.08 * (high - low), 0.01);
  const metric = setting.metric;
  [low, high] = [Math.max(low - room, 0), metric.per === 100 ? Math.min(high + room, 1) : high + room];
  const y = (value) => area.y + area.h * (1 - (Math.max(value, low) - low) / (high - low));

  // The scale is logarithmic; what sends nothing stands left of it.
  const ticks = setting.ticks.length ? setting.ticks : [[1, "1 B"], [10, "10 B"]];
  const zero = rows.some((row) => row.sent === 0) ? Math.max(0.12 * area.w, 64) : 0;
  const [first, last] = [Math.log10(ticks[0][0]), Math.log10(ticks[ticks.length - 1][0])];
  const x = (sent) => area.x + (sent > 0 ? zero + (area.w - zero) * (Math.log10(sent) - first) / (last - first) : zero / 2);

  const stride = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2].find((one) => (high - low) / one <= 6) || (high - low) / 5;
  for (let value = Math.ceil(low / stride) * stride; value <= high + 1e-9; value += stride) {
    add(svg, "line", { class: "grid", x1: area.x, x2: area.x + area.w, y1: y(value), y2: y(value) });
    add(svg, "text", { class: "tick", x: area.x - 6, y: y(value) + 4, "text-anchor": "end" }, shown(metric, value, stride < 0.01 ? 1 : 0));
  }
  const every = Math.ceil(58 * ticks.length / (area.w - zero));
  ticks.forEach(([value, text], i) => {
    add(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: area.y, y2: area.y + area.h });
    if (i % every === 0) {
      const anchor = i === ticks.length - 1 ? "end" : "middle";
      add(svg, "text", { class: "tick", x: x(value) + (anchor === "end" ? 8 : 0), y: area.y + area.h + 17, "text-anchor": anchor }, text);
    }
  });
  if (zero) add(svg, "text", { class: "tick", x: x(0), y: area.y + area.h + 17, "text-anchor": "middle" }, "0");
  add(svg, "text", { class: "tick", x: area.x + area.w, y: area.y + area.h + 36, "text-anchor": "end" }, "bytes that a device sends and receives →");

  const front = rows.filter((row) => row[split].front).sort((a, b) => a.sent - b.sent);
  const path = front.map((row, i) => (i ? `H${x(row.sent)}V` : `M${x(row.sent)},`) + y(row[split].mean)).join("");
  if (path) add(svg, "path", { class: "front", d: path + `H${area.x + area.w}` });

  const limit = step.below;
  if (limit !== null) {
    const edge = x(limit) - 7;
    add(svg, "rect", { class: "beyond", x: edge, y: area.y, width: area.x + area.w - edge, height: area.h });
    add(svg, "line", { class: "limit", x1: edge, x2: edge, y1: area.y, y2: area.y + area.h });
  }

  const taken = rows.map((row) => ({ x: x(row.sent) - 6, y: y(row[split].mean) - 6, w: 12, h: 12 }));
  // Bars, and the level parts of the front, are crossed only where there is no other place.
  const lines = rows.filter((row) => row[split].margin && row[split].mean >= low).map((row) => {
    const { mean, margin } = row[split], top = y(Math.min(mean + margin, high));
    return { x: x(row.sent) - 2, y: top, w: 4, h: y(mean - margin) - top };
  }).concat(front.map((row, i) => {
    const from = x(row.sent), to = i + 1 < front.length ? x(front[i + 1].sent) : area.x + area.w;
    return { x: from, y: y(row[split].mean) - 1, w: to - from, h: 2 };
  }));
  const advised = step.said.advised[split], judged = step.said.shown;
  const kind = (row) => ["point", row.control && "control", row[split].front && "on-front", row.method === advised && "advised",
    row.method === picked && "picked", limit !== null && row.sent >= limit && !row.control && "out"].filter(Boolean).join(" ");
  const weight = (row) => (row.method === advised ? 0 : row.method === judged || row.method === picked ? 1 : row[split].front ? 2 : row.control ? 1000 : 3) + (row[split].rank || 0) / 100;
  const order = [...rows].sort((a, b) => weight(a) - weight(b));
  const labels = [];
  for (const row of order) {
    const name = row[split].mean < low ? `${row.method} ${shown(metric, row[split].mean, 0)} ↓` : row.method;
    const must = row.control || [advised, judged, picked].includes(row.method) || row[split].front;
    const text = add(svg, "text", { class: "label " + kind(row) }, name);
    const at = [x(row.sent), y(row[split].mean), text.getComputedTextLength(), taken, lines];
    const box = place(...at, { ...area, w: width - area.x - 2 }, must) || (must && place(...at, { x: 2, y: 0, w: width - 4, h: height }, must)) || (row.method === judged && over(...at, width));
    text.remove();
    if (box) { taken.push(box); labels.push([row, box, name]); }
  }
  for (const row of [...order].reverse()) {
    const group = add(svg, "g", { class: kind(row), role: "button" });
    const [cx, cy, { mean, margin, worst, rank }] = [x(row.sent), y(row[split].mean), row[split]];
    if (margin && mean >= low) add(group, "line", { class: "spread", x1: cx, x2: cx, y1: y(mean - margin), y2: y(Math.min(mean + margin, high)) });
    add(group, "circle", { cx, cy, r: row.method === advised ? 7.5 : 5 });
    const standing = row.control ? "a control" : `rank ${rank}${row[split].front ? ", on the front" : ""}`;
    say(group, [row.method, shown(metric, mean) + (margin === null ? "" : ` ± ${change(metric, margin).slice(1)} (95 %)`), `worst device ${shown(metric, worst)}`, row.traffic, standing]);
    group.addEventListener("click", () => pick(row.method));
    group.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(row.method); });
  }
  for (const [row, box, name] of labels) {
    const [px, py, middle] = [x(row.sent), y(row[split].mean), box.y + 7];
    if (Math.abs(middle - py) > 22) add(svg, "line", { class: "leader", x1: px, y1: py, x2: Math.min(Math.max(px, box.x), box.x + box.w), y2: middle + (middle < py ? 7 : -7) });
    add(svg, "text", { class: "label " + kind(row), x: box.x, y: box.y + 11 }, name);
  }
}

// Gain and loss of single devices

function drawDevices(svg, setting, method) {
  const sign = setting.metric.less ? -1 : 1, sure = setting.changes[method]?.shown || [];
  const changes = Object.entries(setting.changes[method]?.devices || {}).sort((a, b) => sign * (b[1] - a[1]));
  const width = Math.max(svg.parentElement.clientWidth, 260), line = Math.min(Math.max(340 / Math.max(changes.length, 1), 3), 20);
  const named = line >= 11, left = named ? 92 : 8, right = 8;
  clear(svg, width, changes.length * line + 30);
  const values = changes.map(([, value]) => value);
  const low = Math.min(0, ...values), high = Math.max(0, ...values, low + 0.01);
  const pad = named ? 42 : 4, from = left + (low < 0 ? pad : 2), to = width - right - (high > 0 ? pad : 2);
  const x = (value) => from + (to - from) * (value - low) / (high - low);
  changes.forEach(([device, value], i) => {
    const y = i * line + 4;
    const chance = !sure.includes(device);
    const group = add(svg, "g", { class: (sign * value < 0 ? "loss" : "gain") + (chance ? " chance" : "") });
    add(group, "rect", { class: "hit", x: 0, y, width, height: line });
    add(group, "rect", { class: "bar", x: Math.min(x(0), x(value)), y: y + line * 0.12, width: Math.max(Math.abs(x(value) - x(0)), 1), height: line * 0.76 });
    if (named) {
      const letters = [...device], short = (most) => letters.length > most ? letters.slice(0, most - 1).join("") + "…" : device;
      const label = add(group, "text", { class: "tick", x: left - 6, y: y + line / 2 + 4, "text-anchor": "end" }, short(13));
      for (let most = 12; most && label.getComputedTextLength() > left - 6; most--) label.textContent = short(most);
      const anchor = value < 0 ? "end" : "start";
      add(group, "text", { class: "amount", x: x(value) + (value < 0 ? -4 : 4), y: y + line / 2 + 4, "text-anchor": anchor }, change(setting.metric, value));
    }
    say(group, [device, `${change(setting.metric, value)} ${setting.metric.unit} with ${method}${chance ? " (alone may be chance)" : ""}`, `${setting.metric.words} ${shown(setting.metric, setting.alone[device])} with ${setting.reference}`]);
  });
  add(svg, "line", { class: "zero", x1: x(0), x2: x(0), y1: 2, y2: changes.length * line + 6 });
  add(svg, "text", { class: "tick", x: x(0), y: changes.length * line + 22, "text-anchor": "middle" }, "0 = " + setting.reference);
}

// One setting: its slider, its test set and the method whose devices are shown

function explore(panel) {
  const setting = numbers[panel.dataset.setting];
  const find = (name) => panel.querySelector(`[data-is="${name}"]`);
  const [slider, range, choice, tested, answer, count] = ["budget", "range", "method", "split", "answer", "count"].map(find);
  const [tradeoff, devices] = [find("tradeoff"), find("devices")];
  const splits = Object.keys(setting.splits);
  const state = { step: setting.budgets.length - 1, split: splits[0], picked: null };
  panel.querySelectorAll("[hidden]").forEach((part) => { part.hidden = false; });

  [slider.max, slider.value] = [state.step, state.step];
  find("slider").hidden = setting.budgets.length < 2;
  tested.hidden = splits.length < 2;
  for (const split of splits) {
    const button = add(tested, "button", { type: "button" }, setting.splits[split]);
    button.addEventListener("click", () => { state.split = split; draw(); });
  }
  const methods = Object.keys(setting.changes);
  find("changes").hidden = !methods.length;
  for (const row of setting.rows) if (methods.includes(row.method)) add(choice, "option", { value: row.method }, row.method);

  const pick = (method) => { if (methods.includes(method)) { state.picked = method; draw(); } };
  slider.addEventListener("input", () => { state.step = Number(slider.value); state.picked = null; draw(); });
  choice.addEventListener("change", () => pick(choice.value));

  function draw() {
    const step = setting.budgets[state.step];
    const shown = state.picked || (methods.includes(step.said.shown) ? step.said.shown : methods[0]);
    range.textContent = step.text;
    slider.setAttribute("aria-valuetext", step.text);
    [...tested.querySelectorAll("button")].forEach((button, i) => button.setAttribute("aria-pressed", splits[i] === state.split));
    answer.querySelector("strong").textContent = step.said.headline;
    answer.querySelectorAll("p:not(:first-child)").forEach((line) => line.remove());
    for (const sentence of step.said.sentences) add(answer, "p", {}, sentence);
    drawTradeoff(tradeoff, setting, state.split, step, state.picked, pick);
    find("advised").hidden = !step.said.advised[state.split];
    if (!methods.length) return;
    choice.value = shown;
    const { helped, hurt, chance, devices: each } = setting.changes[shown];
    count.textContent = `helps ${helped}, hurts ${hurt} of ${Object.keys(each).length}${chance || step.said.unsure ? "; may be chance" : ""}`;
    drawDevices(devices, setting, shown);
  }

  let width = 0;
  new ResizeObserver(() => { if (tradeoff.parentElement.clientWidth !== width) { width = tradeoff.parentElement.clientWidth; draw(); } }).observe(panel);
}

// Tables: sorted by a click on a head, filtered by a text

function enhance(panel) {
  const table = panel.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const find = panel.querySelector("input[type=search]"), controls = panel.querySelector("input[type=checkbox]");
  panel.querySelector(".filter").hidden = false;
  const filter = () => {
    for (const row of body.rows) {
      const named = row.textContent.toLowerCase().includes(find.value.trim().toLowerCase());
      row.hidden = !named || (row.classList.contains("control") && !controls.checked);
    }
  };
  find.addEventListener("input", filter);
  controls.addEventListener("change", filter);
  const key = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent;
  heads.forEach((head, i) => {
    const text = head.textContent;
    head.textContent = "";
    add(head, "button", { type: "button" }, text).addEventListener("click", () => {
      const numeric = [...body.rows].some((row) => row.cells[i].dataset.value !== undefined);
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric && i > 0;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const known = (row) => !numeric || row.cells[i].dataset.value !== undefined;
      const compare = (a, b) => (numeric ? key(a, i) - key(b, i) : key(a, i).localeCompare(key(b, i))) * (down ? -1 : 1);
      const rows = [...body.rows];
      body.append(...rows.filter(known).sort(compare), ...rows.filter((row) => !known(row)));
    });
  });
}

document.querySelectorAll("[data-setting]").forEach(explore);
document.querySelectorAll("[data-table]").forEach(enhance);
// A link to a folded part unfolds it.
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) { for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true; target.scrollIntoView(); }
};
window.addEventListener("hashchange", unfold);
if (location.hash) unfold();
