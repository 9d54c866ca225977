"use strict";
(() => {
  const STEP = 200; // rows drawn at once; more follow when the reader scrolls
  const LONG = 12; // a longer table starts with the rows that have a published value or a verdict
  const SETTLE = 150; // ms between a key stroke and the search, and for the pointer to reach the tip

  // Digits of measurements would match almost any number that somebody looks for.
  const UNSEARCHED = new Set(["n", "n_failed", "estimate", "sd", "ci_low", "ci_high", "theory", "p", "stale"]);

  const verdicts = JSON.parse(document.getElementById("page-verdicts").textContent);
  const ranks = Object.keys(verdicts);
  const search = document.getElementById("page-search");
  const toolbar = document.querySelector(".toolbar");
  const status = document.querySelector(".status");
  const chosen = new Set();
  let words = [];

  // --- values ---

  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const INFINITE = /^([+-]?)inf(inity)?$/i;

  /** The number that a cell holds; NaN for words, missing values and NaN itself. */
  function number(text) {
    if (NUMBER.test(text)) return Number(text);
    const infinite = INFINITE.exec(text);
    return infinite ? (infinite[1] === "-" ? -Infinity : Infinity) : NaN;
  }

  /** Decimals that show two digits of the half width of an interval; undefined without one. */
  function decimalsFor(halfWidth) {
    return halfWidth > 0 && Number.isFinite(halfWidth) ? 1 - Math.floor(Math.log10(halfWidth)) : undefined;
  }

  /** A readable number: six digits, or as many decimals as its interval deserves; words stay as they are. */
  function show(text, decimals) {
    const value = number(text);
    if (!Number.isFinite(value) || value === 0) return text;
    const exponent = Math.floor(Math.log10(Math.abs(value)));
    const digits = Math.min(10, Math.max(1, decimals === undefined ? 6 : exponent + decimals + 1));
    if (exponent < -4 || exponent >= 9) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
    const fixed = value.toFixed(Math.max(0, digits - 1 - exponent));
    return decimals === undefined && fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
  }

  /** Numbers first and by size, then words, then missing values whatever the direction. */
  function compare(a, b, direction) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [number(a), number(b)];
    if (!Number.isNaN(x) && !Number.isNaN(y)) return direction * (x === y ? 0 : x - y);
    if (Number.isNaN(x) !== Number.isNaN(y)) return direction * (Number.isNaN(x) - Number.isNaN(y));
    return direction * a.localeCompare(b, "en", { numeric: true });
  }

  // --- elements: text from the data enters the page here, as text and never as markup ---

  function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  const small = (...content) => make("small", {}, ...content);
  const absent = () => make("span", { className: "absent", title: "no value" }, "–");

  function chipFor(card, row) {
    const word = card.at("verdict", row);
    const chip = make("button", { type: "button", className: `chip ${verdicts[word]?.kind ?? "none"}` }, word);
    chip.setAttribute("aria-describedby", "page-tip");
    chip.explain = () => explanation(card, row);
    return chip;
  }

  function explanation(card, row) {
    const word = card.at("verdict", row);
    const list = make("dl");
    for (const name of ["class", "p", "claim", "note"]) {
      const text = card.at(name, row);
      if (text !== "") list.append(make("dt", {}, name), make("dd", {}, show(text)));
    }
    if (card.stale(row)) list.append(make("dt", {}, "stale"), make("dd", {}, "the code has changed since this run"));
    return [make("strong", {}, word), make("p", {}, verdicts[word]?.meaning ?? ""), list];
  }

  // --- columns of a table: header, sort key, class and cell content ---

  function columnsOf(card) {
    const plain = (name, kind) => ({
      label: name,
      kind,
      key: (row) => card.at(name, row),
      cell: (row) => [shown(card.at(name, row))],
    });
    const shown = (text) => (text === "" ? absent() : make("span", { title: text }, show(text)));
    // An axis of a few rows only stands with their quantity: as columns, such axes push the verdict out of sight.
    const [common, rare] = [[], []];
    for (const name of card.places) if (card.varies(name)) (card.mostlyBlank(name) ? rare : common).push(name);
    const columns = common.map((name) => plain(name, "axis"));
    const rarely = (row) => rare.filter((name) => card.at(name, row) !== "").map((name) => `${name} = ${show(card.at(name, row))}`);
    columns.push({
      label: "quantity",
      kind: "quantity",
      key: (row) => `${card.at("quantity", row)} ${card.at("statistic", row)}`,
      cell: (row) => [
        card.at("quantity", row),
        small([card.at("statistic", row), card.at("unit", row), ...rarely(row)].filter(Boolean).join(", ")),
      ],
    });
    columns.push({ ...plain("published", "number"), cell: (row) => [card.at("published", row) || absent()] });
    columns.push({ label: "measured", kind: "number", key: (row) => card.at("estimate", row), cell: measured });
    columns.push(plain("theory", "number"));
    columns.push({
      label: "verdict",
      kind: "verdict",
      key: (row) => String(ranks.indexOf(card.at("verdict", row))).replace("-1", ""),
      cell: (row) => [
        card.at("verdict", row) === "" ? absent() : chipFor(card, row),
        card.stale(row) ? make("span", { className: "stale-mark", title: "code changed since the run" }, "stale") : "",
      ],
    });
    return columns;

    function measured(row) {
      const [estimate, low, high, n, failed] = ["estimate", "ci_low", "ci_high", "n", "n_failed"].map((name) => card.at(name, row));
      if (estimate === "") return [absent()];
      const decimals = decimalsFor((number(high) - number(low)) / 2);
      const details = [];
      const detail = (text) => details.push(make("span", { className: "whole" }, text), " ");
      if (low !== "" || high !== "") detail(`[${show(low, decimals)}, ${show(high, decimals)}]`);
      if (n !== "") detail(`n = ${show(n)}`);
      if (number(failed) > 0) detail(`${show(failed)} failed`);
      const title = low === "" && high === "" ? estimate : `${estimate}, 95 % interval ${low} to ${high}`;
      return [make("span", { title }, show(estimate, decimals)), small(...details)];
    }
  }

  // --- one table ---

  class Card {
    constructor(element) {
      this.element = element;
      this.box = element.querySelector(".box");
      this.shown = element.querySelector(".shown");
      this.expand = element.querySelector(".expand");
      this.data = JSON.parse(element.querySelector(".data").textContent);
      this.heading = ["h2", ".origin"].map((part) => element.querySelector(part).textContent.toLowerCase()).join(" ");
      this.order = Array.from({ length: this.data.rows }, (_, row) => row);
      this.essential = this.order.filter((row) => this.at("published", row) !== "" || this.at("verdict", row) !== "");
      this.short = this.data.rows > LONG && this.essential.length > 0 && this.essential.length < this.data.rows;
      this.expand.hidden = !this.short;
      const same = this.places.filter((name) => !this.varies(name) && this.data.columns[name] !== "");
      const everywhere = same.map((name) => `${name} = ${show(this.data.columns[name])}`);
      element.querySelector(".same").textContent = same.length > 0 ? `In every row: ${everywhere.join(", ")}` : "";
      this.columns = columnsOf(this);
      // The roles are spelled out because a narrow screen lays rows out as blocks, which hides the native ones.
      this.body = make("tbody", { role: "rowgroup" });
      this.heads = this.columns.map((column) => this.head(column));
      const heading = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...this.heads));
      this.box.append(make("table", { role: "table" }, heading, this.body));
      this.expand.addEventListener("click", () => {
        this.short = !this.short;
        this.update();
      });
      this.box.addEventListener("scroll", () => {
        const rest = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
        if (rest < this.box.clientHeight) this.more();
      });
    }

    /** The columns that say where a row stands; one that is the same everywhere is said once, above the table. */
    get places() {
      return [...this.data.axes, "variant", "environment", "scale"];
    }

    varies(name) {
      return Array.isArray(this.data.columns[name]);
    }

    mostlyBlank(name) {
      const column = this.data.columns[name];
      return column.filter((text) => text === "").length > column.length / 2;
    }

    at(name, row) {
      const column = this.data.columns[name];
      return Array.isArray(column) ? column[row] : column;
    }

    stale(row) {
      return !["", "0", "false", "no"].includes(this.at("stale", row).toLowerCase());
    }

    head(column) {
      const button = make("button", { type: "button" }, column.label);
      const head = make("th", { scope: "col", role: "columnheader", className: column.kind }, button);
      head.dataset.label = column.label;
      button.addEventListener("click", () => {
        const direction = head.ariaSort === "ascending" ? -1 : 1;
        for (const other of this.heads) other.ariaSort = null;
        head.ariaSort = direction === 1 ? "ascending" : "descending";
        const keys = this.order.map((_, row) => column.key(row));
        this.order.sort((a, b) => compare(keys[a], keys[b], direction) || a - b);
        this.update();
      });
      return head;
    }

    /** Lower-case text of every row, made when somebody searches for the first time. */
    get rowTexts() {
      const names = Object.keys(this.data.columns).filter((name) => !UNSEARCHED.has(name));
      const text = (row) => [...names.map((name) => this.at(name, row)), this.stale(row) ? "stale" : ""].join(" ");
      const texts = this.order.map((_, row) => text(row).toLowerCase());
      Object.defineProperty(this, "rowTexts", { value: texts });
      return texts;
    }

    matches(row) {
      if (chosen.size > 0 && !chosen.has(this.at("verdict", row))) return false;
      return words.every((word) => this.heading.includes(word) || this.rowTexts[row].includes(word));
    }

    /** Apply filter, search and order; returns the number of rows that are left. */
    update() {
      const filtered = chosen.size > 0 || words.length > 0;
      const essential = new Set(this.essential);
      this.rows = this.order.filter((row) => (filtered ? this.matches(row) : !this.short || essential.has(row)));
      this.body.replaceChildren();
      this.box.scrollTop = 0;
      this.more();
      const total = this.data.rows;
      this.shown.textContent =
        total === 0 ? "No rows yet." : `${this.rows.length} of ${total} ${total === 1 ? "row" : "rows"}`;
      this.expand.hidden = filtered || this.essential.length === 0 || this.essential.length === total || total <= LONG;
      this.expand.textContent = this.short ? "Show all rows" : "Show only rows with a published value or verdict";
      return this.rows.length;
    }

    /** Draw the next rows. */
    more() {
      const start = this.body.children.length;
      this.body.append(...this.rows.slice(start, start + STEP).map((row) => this.line(row)));
    }

    line(row) {
      const cells = this.columns.map(({ label, kind, cell }) => {
        const node = make("td", { role: "cell", className: kind }, ...cell(row));
        node.dataset.label = label;
        return node;
      });
      return make("tr", { role: "row", className: this.stale(row) ? "stale" : "" }, ...cells);
    }
  }

  const cards = Array.from(document.querySelectorAll(".card"), (element) => new Card(element));

  // --- filter and search over all tables ---

  function updateAll() {
    const filtered = chosen.size > 0 || words.length > 0;
    let rows = 0;
    let tables = 0;
    for (const card of cards) {
      const left = card.update();
      const named = chosen.size === 0 && words.every((word) => card.heading.includes(word));
      card.element.hidden = filtered && left === 0 && !named;
      rows += card.element.hidden ? 0 : left;
      tables += card.element.hidden ? 0 : 1;
    }
    status.textContent = filtered ? `${rows} ${rows === 1 ? "row" : "rows"} in ${tables} of ${cards.length} tables` : "";
    window.dispatchEvent(new Event("resize")); // charts that were hidden have no width of their own until told
  }

  const filters = document.querySelectorAll(".filters button");
  for (const button of filters) {
    button.addEventListener("click", () => {
      const word = button.dataset.verdict;
      if (!chosen.delete(word)) chosen.add(word);
      button.ariaPressed = String(chosen.has(word));
      updateAll();
    });
  }

  function readSearch() {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    updateAll();
  }

  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(readSearch, SETTLE);
  });
  toolbar.addEventListener("submit", (event) => event.preventDefault());
  toolbar.addEventListener("reset", () => {
    chosen.clear();
    for (const button of filters) button.ariaPressed = "false";
    setTimeout(readSearch); // the field is empty only after this event
  });

  // --- the explanation of a verdict, on hover and on focus ---

  const tip = document.getElementById("page-tip");
  let explained; // the chip that the tip belongs to
  let leaving;

  function openTip(chip) {
    clearTimeout(leaving);
    if (chip !== explained) tip.replaceChildren(...chip.explain());
    explained = chip;
    tip.hidden = false;
    placeTip();
  }

  function placeTip() {
    const place = explained.getBoundingClientRect();
    const below = place.bottom + 6;
    const top = below + tip.offsetHeight < innerHeight ? below : Math.max(8, place.top - 6 - tip.offsetHeight);
    tip.style.top = `${top}px`;
    tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
  }

  function closeTip() {
    clearTimeout(leaving);
    tip.hidden = true;
  }

  for (const type of ["pointerover", "focusin"]) {
    document.addEventListener(type, ({ target }) => {
      const chip = target.closest?.(".box .chip");
      if (chip) openTip(chip);
      else if (tip.contains(target)) clearTimeout(leaving);
    });
  }
  document.addEventListener("pointerout", ({ target }) => {
    if (target.closest?.(".box .chip, #page-tip")) leaving = setTimeout(closeTip, SETTLE);
  });
  document.addEventListener("focusout", closeTip);
  // Focus by the tab key scrolls the chip into view: its tip must come along, any other one would lose its chip.
  document.addEventListener(
    "scroll",
    ({ target }) => {
      if (tip.hidden || target === tip) return;
      if (explained === document.activeElement) placeTip();
      else closeTip();
    },
    { capture: true },
  );
  document.addEventListener("keydown", ({ key }) => key === "Escape" && closeTip());

  // --- copy the command ---

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // no permission: leave it selected for the keyboard
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }

  // --- charts. Colours are style sheet variables, so that light, dark and print need no second drawing ---

  const config = JSON.parse(document.getElementById("page-chart-config").textContent);

  /** True for a single plot or a layer, which can take the width of the page; grids of plots keep their own. */
  function fits(spec) {
    const grid = ["concat", "hconcat", "vconcat", "facet", "repeat"].some((key) => key in spec);
    return !grid && !["row", "column", "facet"].some((key) => key in (spec.encoding ?? {}));
  }

  async function draw(container, spec) {
    const fluid = fits(spec) ? { width: "container", height: 260, autosize: { type: "fit-x", contains: "padding" } } : {};
    const columns = Math.max(1, Math.floor(container.clientWidth / 170));
    try {
      await window.vegaEmbed(container, { ...fluid, ...spec }, {
        mode: "vega-lite",
        renderer: "svg",
        actions: false,
        ast: true, // interpreted expressions: the page's policy forbids making code from strings
        defaultStyle: false,
        tooltip: { disableDefaultStyle: true },
        config: {
          ...config,
          legend: { ...config.legend, columns },
          title: { ...config.title, limit: container.clientWidth },
        },
      });
    } catch (error) {
      container.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(container.ariaLabel, error);
    }
  }

  const waiting = new Map();
  const observer = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
    { rootMargin: "300px" },
  );

  function drawNow(container) {
    const spec = waiting.get(container);
    if (!spec) return;
    waiting.delete(container);
    observer.unobserve(container);
    draw(container, spec);
  }

  updateAll();
  // The chart library is a later script of the page: only then may a chart be drawn.
  document.addEventListener("DOMContentLoaded", () => {
    for (const card of cards) {
      card.element.querySelectorAll(".chart").forEach((container, index) => {
        waiting.set(container, card.data.charts[index]);
        observer.observe(container);
      });
    }
  });
  window.addEventListener("beforeprint", () => waiting.forEach((_, container) => drawNow(container)));
})();
