"use strict";
// Sorts tables by a column, and shows of the tables of what-ifs what sliders ask for: every number and sentence of it
// stands in the tables, where those without scripts read it.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (body.rows.length < 3 || table.tHead.rows[0].cells.length < 3) continue;
  const value = (row, column) => {
    const cell = row.cells[column];
    // The row of a schedule that was not replayed has one wide cell.
    if (cell === undefined || cell.colSpan > 1) return null;
    const text = cell.dataset.sort ?? cell.textContent.trim();
    return text === "" ? null : isFinite(text) ? Number(text) : text;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const keyed = Array.from(body.rows, row => [value(row, column), row]);
      keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : falling ? compare(b, a) : compare(a, b));
      body.append(...keyed.filter(([, row]) => row.className !== "total").map(([, row]) => row));
      body.append(...keyed.filter(([, row]) => row.className === "total").map(([, row]) => row));
    });
  });
}
const panel = document.querySelector(".panel");
if (panel) {
  const cells = new Map(Array.from(document.querySelectorAll("td[data-at]"), cell => [cell.dataset.at, cell]));
  const sliders = Array.from(panel.querySelectorAll("input"));
  const told = panel.querySelector(".told");
  const curve = panel.querySelector(".curve");
  const marks = curve.dataset.ticks.split(",").map(Number);
  const names = slider => slider.dataset.values.split("|");
  const [bandwidths] = sliders.map(names);
  const draw = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const show = () => {
    const at = sliders.map(slider => slider.value);
    sliders.forEach((slider, number) => {
      const text = names(slider)[at[number]];
      slider.setAttribute("aria-valuetext", text);
      panel.querySelector(`output[for=${slider.id}]`).textContent = text;
    });
    const here = cells.get(at.join(","));
    for (const cell of cells.values()) cell.classList.toggle("here", cell === here);
    if (told.textContent !== here.dataset.told) told.textContent = here.dataset.told;
    const width = curve.clientWidth, height = 260, left = 48, right = 16, top = 20, bottom = 42;
    const every = bandwidths.map((_, column) => cells.get([column, ...at.slice(1)].join(",")));
    const most = Math.max(...every.flatMap(cell => [cell.dataset.step, cell.dataset.now, curve.dataset.today]).filter(Boolean));
    const ticks = marks.slice(0, 1 + marks.findIndex(mark => mark >= most));
    const x = column => left + (width - left - right) * (bandwidths.length < 2 ? .5 : column / (bandwidths.length - 1));
    const y = step => top + (height - top - bottom) * (1 - step / ticks.at(-1));
    const line = (kind, key) => {
      const parts = every.map((cell, column) => cell.dataset[key] === undefined ? null : `${x(column)},${y(cell.dataset[key])}`);
      const path = parts.map((part, column) => part && (column && parts[column - 1] ? "L" : "M") + part).filter(Boolean);
      return draw("path", {class: kind, d: path.join("")});
    };
    const latency = names(sliders[1])[at[1]];
    const said = every.map((cell, column) => `${bandwidths[column]}: ${cell.dataset.run ? `${cell.dataset.run}, ${Number(cell.dataset.step).toFixed(1)} ms` : "nothing fits"}`);
    const svg = draw("svg", {height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Step over bandwidth at ${latency}: ${said.join("; ")}`});
    for (const tick of ticks) {
      svg.append(draw("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}));
      svg.append(draw("text", {x: left - 6, y: y(tick) + 4, "text-anchor": "end"}, String(tick)));
    }
    const room = (width - left - right) / bandwidths.length;
    bandwidths.forEach((name, column) => {
      if (column % Math.ceil(34 / room) === 0) svg.append(draw("text", {x: x(column), y: height - bottom + 18, "text-anchor": "middle"}, name.split(" ")[0]));
    });
    svg.append(draw("text", {x: left - 6, y: 10, "text-anchor": "start"}, `step (ms) at ${latency}`));
    svg.append(draw("text", {x: width - right, y: height - 4, "text-anchor": "end"}, "bandwidth (Gbit/s)"));
    const today = y(curve.dataset.today);
    svg.append(draw("line", {class: "today", x1: left, x2: width - right, y1: today, y2: today}));
    svg.append(line("now", "now"), line("plan", "step"));
    every.forEach((cell, column) => {
      if (cell.dataset.step === undefined) return;
      const look = cell === here ? {class: "here", r: 7} : {r: 4.5};
      svg.append(draw("circle", {cx: x(column), cy: y(cell.dataset.step), fill: cell.dataset.colour, ...look}));
    });
    curve.replaceChildren(svg);
  };
  panel.hidden = false;
  panel.parentNode.querySelector("details").open = false;
  for (const slider of sliders) slider.addEventListener("input", show);
  addEventListener("resize", show);
  show();
}
