"use strict";
(() => {
  const number = (cell) => {
    const value = cell && cell.dataset.value;
    return value === undefined ? NaN : Number(value);
  };
  const text = (cell) => (cell ? cell.textContent.trim() : "");

  /* cells without a number stay last in both directions */
  const compare = (a, b, sign) => {
    const x = number(a), y = number(b);
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    if (!isNaN(x)) return sign * (x - y);
    return sign * text(a).localeCompare(text(b), "en", { numeric: true });
  };

  for (const table of document.querySelectorAll("table.sorts")) {
    const body = table.tBodies[0], original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const next = { ascending: "descending", descending: null }[before];
        const order = before === null ? "ascending" : next;
        for (const other of heads) other.removeAttribute("aria-sort");
        if (order) head.setAttribute("aria-sort", order);
        const sign = order === "descending" ? -1 : 1, rows = [...original];
        if (order) rows.sort((a, b) => compare(a.cells[column], b.cells[column], sign));
        body.append(...rows);
      });
    });
  }

  const marks = document.querySelectorAll(".wide");
  const measure = () => {
    for (const box of marks) {
      const overflows = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("overflows", overflows);
      box.tabIndex = overflows ? 0 : -1;
    }
  };
  measure();
  addEventListener("resize", measure);
  document.addEventListener("toggle", measure, true);

  /* paper shows everything */
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });
})();
