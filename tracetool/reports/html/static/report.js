"use strict";
// Sorts tables by a column; without scripts the page lacks nothing else.
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
