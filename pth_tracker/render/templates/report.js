"use strict";
(() => {
  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const compare = new Intl.Collator("en", { numeric: true, sensitivity: "base" }).compare;

  const keyOf = (cell) => ("sort" in cell.dataset ? cell.dataset.sort : cell.textContent.trim());
  const order = (one, two, down) => {
    const [a, b] = [one, two];
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    const found = Number.isNaN(x) || Number.isNaN(y) ? compare(a, b) : x - y;
    return down ? -found : found;
  };

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = make("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [keyOf(row.cells[place]), row]);
        rows.sort((one, two) => order(one[0], two[0], down));
        body.append(...rows.map(([, row]) => row));
      });
    });
  };

  const filterable = (table) => {
    const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
    const count = make("output", {});
    const noun = table.dataset.noun;
    const input = make("input", { type: "search", placeholder: `Filter ${noun}`, autocomplete: "off" });
    input.setAttribute("aria-label", `Filter ${noun}`);
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.value = words.length ? `${shown} of ${rows.length} ${noun}` : `${rows.length} ${noun}`;
    };
    input.addEventListener("input", apply);
    apply();
    table.parentElement.before(make("div", { className: "tools" }, input, count));
    return (text) => { input.value = text; apply(); };
  };

  const filters = new Map();
  for (const table of document.querySelectorAll("table.data")) {
    sortable(table);
    filters.set(table.id, filterable(table));
  }
  for (const link of document.querySelectorAll("a[data-find]")) {
    link.addEventListener("click", () => filters.get("runs-table")?.(link.dataset.find));
  }

  const findings = [...document.querySelectorAll("#findings article[data-level]")];
  const levels = ["fail", "warn", "info"].filter((level) => findings.some((one) => one.dataset.level === level));
  if (levels.length > 1) {
    const hiddenLevels = new Set();
    const bar = make("div", { className: "tools" }, "Show");
    bar.setAttribute("role", "group");
    for (const level of levels) {
      const number = findings.filter((one) => one.dataset.level === level).length;
      const button = make("button", { type: "button", textContent: `${level} (${number})` });
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        hiddenLevels.has(level) ? hiddenLevels.delete(level) : hiddenLevels.add(level);
        button.setAttribute("aria-pressed", String(!hiddenLevels.has(level)));
        for (const one of findings) one.hidden = hiddenLevels.has(one.dataset.level);
        for (const group of document.querySelectorAll("#findings .group")) {
          const own = [...group.querySelectorAll("article[data-level]")];
          group.hidden = own.length > 0 && own.every((one) => one.hidden);
        }
      });
      bar.append(button);
    }
    document.querySelector("#findings > h2").after(bar);
  }

  const details = [...document.querySelectorAll("details")];
  const open = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  };
  for (const one of details) one.open = false;
  addEventListener("hashchange", open);
  open();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = details.filter((one) => !one.open);
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
