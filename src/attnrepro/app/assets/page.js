"use strict";
(() => {
  const STEP = 200; // rows drawn at once; more follow when the reader scrolls
  const LONG = 12; // a longer table starts with the rows that have a published value or a verdict
  const SETTLE = 150; // ms between a key stroke and the search, and for the pointer to reach the tip

  // Digits of measurements would match almost any number that somebody looks for.
  const UNSEARCHED = new Set(["n", "n_failed", "estimate", "sd", "ci_low", "ci_high", "theory", "p", "stale"]);

  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const verdicts = read("page-verdicts");
  const labels = read("page-labels");
  const ranks = Object.keys(verdicts);
  const search = document.getElementById("page-search");
  const ofDocument = document.getElementById("page-document");
  const ofScale = document.getElementById("page-scale");
  const toolbar = document.querySelector(".toolbar");
  const status = document.querySelector(".status");
  const chosen = new Set();
  let words = [];

  // --- language: elements that have a Chinese text carry it in data-zh ---

  let chinese = false;
  for (const node of document.querySelectorAll("[data-zh]")) node.dataset.en = node.textContent;

  /** A word of the page, or the name of a quantity, in the language that is on. */
  const say = (text) => (chinese && labels.words[text]) || text;
  const quantity = (name) => (chinese && labels.quantities[name]) || name;

  function translate() {
    for (const node of document.querySelectorAll("[data-zh]")) {
      node.textContent = chinese ? node.dataset.zh : node.dataset.en;
      if (chinese) node.lang = "zh-Hant";
      else node.removeAttribute("lang");
    }
    const button = document.getElementById("page-language");
    button.textContent = chinese ? "English" : "中文";
    button.lang = chinese ? "en" : "zh-Hant";
    button.ariaPressed = String(chinese);
    search.dataset.en ??= search.placeholder;
    search.placeholder = say(search.dataset.en);
  }

  // --- compressed data: JSON, gzip, base64 ---

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

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
    const tell = (name, ...content) => list.append(make("dt", {}, say(name)), make("dd", {}, ...content));
    const behind = card.data.hover ?? {};
    if (card.behind("tolerance", row)) tell("tolerance", card.behind("tolerance", row));
    const found = "found" in behind ? card.behind("found", row) : card.at("note", row);
    if (found) tell("found", ...few(found.split("; ")));
    if (card.behind("reason", row)) tell("why so", card.behind("reason", row));
    for (const name of ["class", "p", "claim"]) {
      const text = card.at(name, row);
      if (text !== "") tell(name, show(text));
    }
    if (card.stale(row)) list.append(make("dt", {}, "stale"), make("dd", {}, "the code has changed since this run"));
    return [make("strong", {}, word), make("p", {}, verdicts[word]?.meaning ?? ""), list];
  }

  /** Each part on a line of its own; of a long list the first ones. */
  function few(parts) {
    const most = 4;
    const lines = parts.slice(0, parts.length > most + 1 ? most : parts.length).map((part) => make("div", {}, part));
    if (lines.length < parts.length) lines.push(make("div", { className: "absent" }, `and ${parts.length - lines.length} more, all in the CSV`));
    return lines;
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
    // An axis of a few rows only stands with their quantity, and so does what there is no room for: as columns, such
    // axes push the numbers out of sight.
    const [common, rare] = [[], []];
    for (const name of card.places) {
      if (card.varies(name)) (card.mostlyBlank(name) || card.folded.has(name) ? rare : common).push(name);
    }
    const columns = common.map((name) => plain(name, "axis"));
    const rarely = (row) => rare.filter((name) => card.at(name, row) !== "").map((name) => `${name} = ${show(card.at(name, row))}`);
    columns.push({
      label: "quantity",
      kind: "quantity",
      key: (row) => `${card.at("quantity", row)} ${card.at("statistic", row)}`,
      cell: (row) => [
        quantity(card.at("quantity", row)),
        small([chinese && labels.quantities[card.at("quantity", row)] ? card.at("quantity", row) : "", card.at("statistic", row), card.at("unit", row), ...rarely(row)].filter(Boolean).join(", ")),
      ],
    });
    const printed = (row) => make("span", { title: card.behind("tolerance", row) }, card.at("published", row));
    columns.push({ ...plain("published", "number"), cell: (row) => [card.at("published", row) === "" ? absent() : printed(row)] });
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
      this.table = element.id;
      this.folded = new Set(); // columns that there is no room for
      this.title = element.querySelector("h2");
      this.box = element.querySelector(".box");
      this.shown = element.querySelector(".shown");
      this.expand = element.querySelector(".expand");
      const link = this.title.querySelector("a");
      const parts = [link.textContent, link.dataset.zh ?? "", element.querySelector(".origin").textContent];
      this.heading = parts.join(" ").toLowerCase();
      this.expand.addEventListener("click", () => {
        this.short = !this.short;
        this.update();
        this.fit();
      });
      this.box.addEventListener("scroll", () => {
        const rest = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
        if (rest < this.box.clientHeight) this.more();
      });
      element.querySelector(".csv").addEventListener("click", () => this.download());
    }

    /** Unpack the rows when they are needed for the first time. */
    load() {
      this.loading ??= unpack(JSON.parse(this.element.querySelector(".data").textContent)).then((data) => this.fill(data));
      return this.loading;
    }

    fill(data) {
      this.data = data;
      this.order = Array.from({ length: data.rows }, (_, row) => row);
      this.essential = this.order.filter((row) => this.at("published", row) !== "" || this.at("verdict", row) !== "");
      this.short = data.rows > LONG && this.essential.length > 0 && this.essential.length < data.rows;
      this.expand.hidden = !this.short;
      const same = this.places.filter((name) => !this.varies(name) && data.columns[name] !== "");
      const everywhere = same.map((name) => `${name} = ${show(data.columns[name])}`);
      this.element.querySelector(".same").textContent = same.length > 0 ? `In every row: ${everywhere.join(", ")}` : "";
      this.element.querySelector(".yaml code").textContent = data.yaml;
      this.element.querySelector(".yaml").hidden = data.yaml === "";
      this.build();
      this.element.querySelectorAll(".chart").forEach((container, index) => {
        waiting.set(container, data.charts[index]);
        if (drawing) observer.observe(container);
      });
    }

    /** Headers and an empty body, in the language that is on. */
    build() {
      const [top, place] = [this.box.scrollTop, scrollY];
      this.columns = columnsOf(this);
      // The roles are spelled out because a narrow screen lays rows out as blocks, which hides the native ones.
      this.body = make("tbody", { role: "rowgroup" });
      this.heads = this.columns.map((column) => this.head(column));
      const heading = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...this.heads));
      this.box.replaceChildren(make("table", { role: "table" }, heading, this.body));
      if (this.sorted) this.sort(...this.sorted);
      this.update();
      this.scroll(top);
      if (scrollY !== place) scrollTo(0, place); // without its rows the page was shorter
      this.element.dataset.ready = "";
    }

    /** Give the numbers room: as long as the table is wider than the page, one axis less has a column of its own. */
    fit(printing = false) {
      const width = this.box.clientWidth;
      if (!this.data || width === 0) return;
      const wider = width > (this.fitted ?? 0);
      this.fitted = width;
      if (wider && this.folded.size > 0) {
        this.folded.clear();
        this.build();
      }
      const kinds = (name) => new Set(this.data.columns[name]).size;
      const last = ["variant", "scale", "environment"];
      const order = (name) => (last.includes(name) ? last.indexOf(name) : last.length + kinds(name));
      const places = this.places.filter((name) => this.varies(name) && !this.mostlyBlank(name) && !this.folded.has(name));
      places.sort((a, b) => order(a) - order(b));
      // A narrow screen shows no columns, so that nothing can be measured there; a sheet has them.
      const tooWide = () => (narrow.matches ? printing : this.box.scrollWidth > width + 1);
      // One axis stays: a name that has no end would take all of them away and still not fit.
      while (tooWide() && places.length > 1) {
        this.folded.add(places.shift());
        this.build();
      }
      if (places.length !== 1 || !tooWide() || this.endless) return;
      this.folded.add(places[0]);
      this.build();
      if (!tooWide()) return;
      this.endless = true;
      this.folded.delete(places[0]);
      this.build();
    }

    /** The table's CSV, as it lies in results/tables. */
    download() {
      const names = Object.keys(this.data.columns);
      const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
      const line = (cells) => `${cells.map(quoted).join(",")}\n`;
      const rows = Array.from({ length: this.data.rows }, (_, row) => line(names.map((name) => this.at(name, row))));
      const file = new Blob([line(names), ...rows], { type: "text/csv" });
      const link = make("a", { href: URL.createObjectURL(file), download: `${this.table}.csv` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    /** Go down to a place in the box of rows, drawing those above it. */
    scroll(top) {
      while (top > 0 && this.box.scrollHeight < top + this.box.clientHeight && this.body.children.length < this.rows.length) this.more();
      this.box.scrollTop = top;
    }

    /** Show the row that answers a claim, and mark it. */
    find(claim) {
      const row = this.order.findIndex((index) => this.at("claim", index).split(";").includes(claim));
      if (row < 0) return;
      this.marked = this.order[row];
      if (!this.rows.includes(this.marked)) this.short = false;
      this.update();
      while (!this.body.querySelector(".marked") && this.body.children.length < this.rows.length) this.more();
      this.body.querySelector(".marked")?.scrollIntoView({ block: "center" });
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

    /** What stands behind a verdict: tolerance, found, reason; empty where the page has none. */
    behind(name, row) {
      const column = this.data.hover?.[name] ?? "";
      return Array.isArray(column) ? column[row] : column;
    }

    stale(row) {
      return !["", "0", "false", "no"].includes(this.at("stale", row).toLowerCase());
    }

    head(column) {
      const button = make("button", { type: "button" }, say(column.label));
      const head = make("th", { scope: "col", role: "columnheader", className: column.kind }, button);
      head.dataset.label = column.label;
      button.addEventListener("click", () => {
        this.sort(column.label, head.ariaSort === "ascending" ? "descending" : "ascending");
        this.update();
      });
      return head;
    }

    /** Bring the rows into the order of a column; the page must be told by `update`. */
    sort(label, way) {
      const index = this.columns.findIndex((column) => column.label === label);
      if (index < 0) return;
      for (const other of this.heads) other.ariaSort = null;
      this.heads[index].ariaSort = way;
      const direction = way === "ascending" ? 1 : -1;
      const keys = this.order.map((_, row) => this.columns[index].key(row));
      this.order.sort((a, b) => compare(keys[a], keys[b], direction) || a - b);
      this.sorted = [label, way];
    }

    /** Lower-case text of every row, made when somebody searches for the first time. */
    get rowTexts() {
      const names = Object.keys(this.data.columns).filter((name) => !UNSEARCHED.has(name));
      const named = (row) => labels.quantities[this.at("quantity", row)] ?? "";
      const text = (row) =>
        [...names.map((name) => this.at(name, row)), named(row), this.stale(row) ? "stale" : ""].join(" ");
      const texts = this.order.map((_, row) => text(row).toLowerCase());
      Object.defineProperty(this, "rowTexts", { value: texts });
      return texts;
    }

    matches(row) {
      if (row === this.marked) return true; // somebody asked for it by name
      if (chosen.size > 0 && !chosen.has(this.at("verdict", row))) return false;
      if (ofScale.value !== "" && this.at("scale", row) !== ofScale.value) return false;
      return words.every((word) => this.heading.includes(word) || this.rowTexts[row].includes(word));
    }

    /** Apply filter, search and order; returns the number of rows that are left. */
    update() {
      const filtered = filtering();
      const essential = new Set(this.essential);
      this.rows = this.order.filter((row) => (filtered ? this.matches(row) : !this.short || essential.has(row)));
      this.body.replaceChildren();
      this.box.scrollTop = 0;
      this.more();
      const total = this.data.rows;
      const counted = chinese ? `${total} 列中的 ${this.rows.length} 列` : `${this.rows.length} of ${total} ${total === 1 ? "row" : "rows"}`;
      this.shown.textContent = total === 0 ? say("No rows yet.") : counted;
      this.expand.hidden = filtered || this.essential.length === 0 || this.essential.length === total || total <= LONG;
      this.expand.textContent = say(this.short ? "Show all rows" : "Show only rows with a published value or verdict");
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
        node.dataset.says = say(label);
        return node;
      });
      const marks = [this.stale(row) ? "stale" : "", row === this.marked ? "marked" : ""].filter(Boolean);
      return make("tr", { role: "row", className: marks.join(" ") }, ...cells);
    }
  }

  const narrow = matchMedia("screen and (max-width: 800px)"); // where the style sheet lays rows out as blocks
  const waiting = new Map(); // charts that are not drawn yet, with their specifications
  let drawing = false; // the chart library is a later script of the page
  const cards = Array.from(document.querySelectorAll(".card"), (element) => new Card(element));

  // --- filter and search over all tables ---

  const filtering = () => chosen.size > 0 || words.length > 0 || ofScale.value !== "";

  async function updateAll() {
    const filtered = filtering();
    if (filtered) await Promise.all(cards.map((card) => card.load()));
    document.body.toggleAttribute("data-filtered", filtered);
    for (const card of cards) {
      const left = card.data ? card.update() : 0;
      const named = chosen.size === 0 && ofScale.value === "" && words.every((word) => card.heading.includes(word));
      const other = ofDocument.value !== "" && card.element.dataset.document !== ofDocument.value;
      card.out = other || (filtered && left === 0 && !named);
    }
    for (const part of document.querySelectorAll(".erratum")) {
      const said = part.textContent.toLowerCase();
      const other = ofDocument.value !== "" && part.dataset.document !== ofDocument.value;
      const verdict = chosen.size === 0 || part.dataset.verdicts.split(" ").some((word) => chosen.has(word));
      part.hidden = other || !verdict || !words.every((word) => said.includes(word));
    }
    for (const part of document.querySelectorAll("[data-part]")) part.hidden = !part.querySelector(".erratum:not([hidden])");
    if (document.body.dataset.view === "page-machines") await compareMachines();
    for (const line of document.querySelectorAll(".contents li")) {
      line.hidden = document.querySelector(`[data-part="${CSS.escape(line.dataset.document)}"]`).hidden;
    }
    tell();
    window.dispatchEvent(new Event("resize")); // charts that were hidden have no width of their own until told
  }

  /** Hide what the filters leave out, but never the table that is open, and say how much is left. */
  function tell() {
    for (const card of cards) card.element.hidden = card.out === true && !card.element.classList.contains("current");
    const kept = cards.filter((card) => !card.out);
    const rows = kept.reduce((sum, card) => sum + (card.data && filtering() ? card.rows.length : 0), 0);
    const tables = `${kept.length} of ${cards.length} tables`;
    const statements = [...document.querySelectorAll(".erratum")];
    if (!filtering() && ofDocument.value === "") status.textContent = "";
    else if (document.body.dataset.view === "page-errata") {
      status.textContent = `${statements.filter((part) => !part.hidden).length} of ${statements.length} statements`;
    } else status.textContent = filtering() ? `${rows} ${rows === 1 ? "row" : "rows"} in ${tables}` : tables;
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

  for (const choice of [ofDocument, ofScale]) choice.addEventListener("change", updateAll);

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
      const chip = target.closest?.("button.chip[aria-describedby]");
      if (chip) openTip(chip);
      else if (tip.contains(target)) clearTimeout(leaving);
    });
  }
  document.addEventListener("pointerout", ({ target }) => {
    // One that was clicked, tapped or reached by key keeps its tip.
    if (explained === document.activeElement) return;
    if (target.closest?.("button.chip[aria-describedby], #page-tip")) leaving = setTimeout(closeTip, SETTLE);
  });
  document.addEventListener("focusout", closeTip);
  // Focus by the tab key scrolls the chip into view: its tip must come along, any other one would lose its chip.
  document.addEventListener(
    "scroll",
    ({ target }) => {
      if (tip.hidden || target === tip) return;
      const [chip, around] = [explained, explained.closest(".box, .sheet")].map((node) => node.getBoundingClientRect());
      if (explained === document.activeElement && chip.bottom > around.top && chip.top < around.bottom) placeTip();
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
      setTimeout(() => (button.textContent = chinese ? button.dataset.zh : button.dataset.en), 1500);
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
    const columns = Math.max(1, Math.floor(container.clientWidth / 220));
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
    container.style.minHeight = "0"; // until now an estimate kept its place
  }

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

  const PRINTED = 5000; // rows
  const SHEET = 800; // pixels that rows have on a sheet of A4 upright, where letters are smaller than here

  window.addEventListener("beforeprint", () => {
    for (const card of cards.filter(({ box }) => box.clientWidth > 0)) {
      card.box.style.width = `${SHEET}px`;
      card.fit(true);
      card.box.style.width = "";
      while (card.body.children.length < Math.min(card.rows.length, PRINTED)) card.more();
    }
    for (const container of waiting.keys()) if (container.offsetParent) drawNow(container);
    const folded =
      ".current details:is(.more, .reading):not([open]), [data-view='page-errata'] .erratum:not([open]), [data-view='page-machines'] .compared:not([open])";
    for (const text of document.querySelectorAll(folded)) {
      text.open = true;
      text.fill?.();
      window.addEventListener("afterprint", () => (text.open = false), { once: true });
    }
  });

  window.addEventListener("afterprint", () => cards.forEach((card) => card.fit()));

  // --- machines side by side: places that were measured in two environments or more ---

  const apart = document.getElementById("page-apart");
  apart.addEventListener("change", compareMachines);

  async function compareMachines() {
    await Promise.all(cards.map((card) => card.load()));
    const found = cards.filter((card) => ofDocument.value === "" || card.element.dataset.document === ofDocument.value).map(comparison).filter(Boolean);
    const environments = new Set(cards.flatMap(({ data }) => [data.columns.environment].flat()).filter(Boolean));
    const said = document.querySelector(".machines-said");
    const places = found.reduce((sum, { pairs }) => sum + pairs.length, 0);
    const differ = found.reduce((sum, { differing }) => sum + differing.length, 0);
    apart.parentElement.hidden = environments.size < 2;
    if (environments.size < 2) {
      said.textContent = `All rows come from ${[...environments].join(", ") || "nowhere yet"}. Measure here (make reproduce-all) and yours stand beside it.`;
    } else {
      said.textContent = `${places} ${places === 1 ? "value" : "values"} of ${found.length} tables measured on two machines or more, ${differ} apart: 95 % intervals that do not overlap, or exact values that are not the same.`;
    }
    const shown = apart.checked ? found.filter(({ differing }) => differing.length > 0) : found;
    document.querySelector(".machines-rows").replaceChildren(...shown.map(compared));
  }

  /** Where one table was measured on several machines, and where they are apart; null if nowhere. */
  function comparison(card) {
    const found = new Map();
    const filtered = filtering();
    for (let row = 0; row < card.data.rows; row += 1) {
      if (card.at("variant", row) !== "" || card.at("estimate", row) === "") continue;
      if (filtered && !card.matches(row)) continue;
      const what = JSON.stringify([...card.data.axes, "scale", "quantity", "statistic"].map((name) => card.at(name, row)));
      if (!found.has(what)) found.set(what, new Map());
      if (!found.get(what).has(card.at("environment", row))) found.get(what).set(card.at("environment", row), row);
    }
    const pairs = [...found.values()].filter((rows) => rows.size > 1);
    if (pairs.length === 0) return null;
    const environments = [...new Set(pairs.flatMap((rows) => [...rows.keys()]))].sort();
    return { card, environments, pairs, differing: pairs.filter((rows) => areApart(card, [...rows.values()])) };
  }

  /** Whether two rows of a place exclude each other: by their intervals, exact values by more than round-off. */
  function areApart(card, rows) {
    const ends = rows.map((row) => {
      const value = number(card.at("estimate", row));
      const slack = 1e-9 * Math.abs(value);
      const [low, high] = ["ci_low", "ci_high"].map((name) => number(card.at(name, row)));
      return Number.isNaN(low) || Number.isNaN(high) ? [value - slack, value + slack] : [low, high];
    });
    return Math.max(...ends.map(([low]) => low)) > Math.min(...ends.map(([, high]) => high));
  }

  /** A table of the page, its lines made when somebody opens it. */
  function compared({ card, environments, pairs, differing }) {
    const lines = apart.checked ? differing : pairs;
    const chip = differing.length > 0 ? make("span", { className: "chip open" }, `${differing.length} apart`) : "";
    const link = make("a", { href: `#/${card.table}` }, card.title.textContent);
    const summary = make("summary", {}, make("span", {}, link), ` ${pairs.length} ${pairs.length === 1 ? "value" : "values"} `, chip);
    const part = make("details", { className: "compared" }, summary);
    const fill = () => part.open && part.children.length === 1 && part.append(make("div", { className: "sheet", tabIndex: 0 }, sheet(card, environments, lines)));
    part.addEventListener("toggle", fill);
    part.fill = fill;
    part.open = differing.length > 0 && (apart.checked || filtering());
    return part;
  }

  function sheet(card, environments, lines) {
    const names = ["quantity", "published", "theory", ...environments, "difference", "verdict"];
    const heads = names.map((text) => make("th", { scope: "col" }, say(text)));
    const body = lines.map((rows) => {
      const members = environments.map((name) => rows.get(name));
      const one = members.find((row) => row !== undefined);
      const where = [...card.data.axes, "scale"].filter((name) => card.at(name, one) !== "").map((name) => `${name} = ${show(card.at(name, one))}`);
      const what = make("th", { scope: "row" }, quantity(card.at("quantity", one)), small([card.at("statistic", one), card.at("unit", one), ...where].filter(Boolean).join(", ")));
      const values = members.map((row) => {
        if (row === undefined) return make("td", {}, absent());
        const [value, low, high] = ["estimate", "ci_low", "ci_high"].map((name) => card.at(name, row));
        const decimals = decimalsFor((number(high) - number(low)) / 2);
        return make("td", {}, show(value, decimals), low === "" ? "" : small(`[${show(low, decimals)}, ${show(high, decimals)}]`));
      });
      const measured = members.filter((row) => row !== undefined);
      const [first, last] = [measured[0], measured.at(-1)].map((row) => number(card.at("estimate", row)));
      const difference = make("td", {}, first === last ? "0" : show(String(Number((last - first).toPrecision(3)))));
      if (first !== 0 && first !== last) difference.append(small(`${show(String(Number(((100 * (last - first)) / Math.abs(first)).toPrecision(3))))} %`));
      if (areApart(card, measured)) difference.append(make("span", { className: "stale-mark" }, "apart"));
      const verdicts = [...new Set(measured.map((row) => card.at("verdict", row)).filter(Boolean))];
      const chips = verdicts.map((word) => chipFor(card, measured.find((row) => card.at("verdict", row) === word)));
      const cells = ["published", "theory"].map((name) => make("td", {}, card.at(name, one) === "" ? absent() : show(card.at(name, one))));
      return make("tr", {}, what, ...cells, ...values, difference, make("td", {}, ...(chips.length > 0 ? chips : [absent()])));
    });
    return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
  }

  // --- views: what stands behind # in the address ---

  const sections = new Set(Array.from(document.querySelectorAll(".view"), (element) => element.id));
  const go = document.getElementById("page-go");
  const [earlier, later] = [document.querySelector(".before"), document.querySelector(".after")];

  async function route() {
    // The slash keeps the browser from scrolling to an element of that name before its view is on.
    const [name, claim] = address().split("/", 2);
    const index = cards.findIndex((card) => card.table === name);
    const view = index >= 0 ? "table" : sections.has(name) ? name : "page-overview";
    document.body.dataset.view = view;
    cards.forEach((card, other) => card.element.classList.toggle("current", other === index));
    for (const link of document.querySelectorAll("nav a")) link.ariaCurrent = link.hash === `#/${view}` ? "page" : null;
    go.value = index >= 0 ? name : "";
    const before = byLink ? 0 : (seen.get(location.hash) ?? 0);
    byLink = false;
    here = location.hash;
    tell();
    window.scrollTo(0, before);
    if (view === "page-machines") await compareMachines();
    if (view === "page-errata" && claim) {
      const part = document.querySelector(`[data-part="${CSS.escape(claim)}"] h3`);
      part?.focus({ preventScroll: true });
      part?.scrollIntoView();
    }
    if (index < 0) return;
    const card = cards[index];
    neighbours(index);
    await card.load();
    card.fit();
    card.title.focus({ preventScroll: true });
    if (card.marked !== undefined && !claim) {
      card.marked = undefined;
      card.update();
    }
    if (claim) card.find(claim);
    window.dispatchEvent(new Event("resize"));
    if (before > 0) window.scrollTo(0, before);
  }

  /** What stands behind # and its slash; an address that is no text leads to the overview. */
  function address() {
    try {
      return decodeURIComponent(location.hash.replace(/^#\/?/, ""));
    } catch {
      return "";
    }
  }

  /** Links to the tables before and after. */
  function neighbours(index) {
    for (const [link, other, arrow] of [[earlier, cards[index - 1], "← "], [later, cards[index + 1], " →"]]) {
      link.hidden = !other;
      if (!other) continue;
      link.href = `#/${other.table}`;
      const title = other.title.textContent;
      link.textContent = arrow === "← " ? arrow + title : title + arrow;
    }
  }

  // Where each view was left: a link opens its view at the top, going back leads to where one was.
  const seen = new Map();
  let here = location.hash;
  let byLink = false;
  window.addEventListener("scroll", () => location.hash === here && seen.set(here, scrollY), { passive: true });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (!link) return;
    if (link.hash === "#page-main") {
      event.preventDefault(); // the address is that of the view
      document.getElementById("page-main").focus();
      return;
    }
    byLink = true;
    if (link.hash === location.hash) route();
  });
  window.addEventListener("hashchange", route);
  window.addEventListener("resize", () => cards.forEach((card) => card.fit()));
  go.addEventListener("change", () => {
    byLink = true;
    location.hash = `/${go.value || "page-overview"}`;
  });

  // --- the switch of languages is remembered where the browser lets a page remember ---

  const memory = {
    get: () => {
      try {
        return localStorage.getItem("attnrepro-language");
      } catch {
        return null;
      }
    },
    set: (value) => {
      try {
        localStorage.setItem("attnrepro-language", value);
      } catch {
        // a page from disk may be denied it: the switch then lasts until the page is closed
      }
    },
  };

  function speak(language) {
    chinese = language === "zh";
    translate();
    for (const card of cards) if (card.data) card.build();
    cards.forEach((card, index) => {
      card.fit();
      if (card.element.classList.contains("current")) neighbours(index);
    });
    if (document.body.dataset.view === "page-machines") compareMachines();
  }

  document.getElementById("page-language").addEventListener("click", () => {
    memory.set(chinese ? "en" : "zh");
    speak(chinese ? "en" : "zh");
  });

  // --- a page that is served follows its results; one from disk asks for nothing ---

  // What a reader has set, by its place in the page: the new page differs in its rows alone.
  const settings = () => document.querySelectorAll("input, .toolbar select, .play select");
  const foldings = () => document.querySelectorAll("details");
  const NOTE = "attnrepro-reading";

  /** Note what the reader sees, for the page that takes this one's place. */
  function keep() {
    const current = cards.find((card) => card.element.classList.contains("current"));
    const state = {
      values: Array.from(settings(), (node) => (node.type === "checkbox" ? node.checked : node.value)),
      open: Array.from(foldings(), (node) => node.open),
      chosen: [...chosen],
      sorted: Object.fromEntries(cards.filter((card) => card.sorted).map((card) => [card.table, card.sorted])),
      all: cards.filter((card) => card.data && card.short === false).map((card) => card.table),
      box: current?.box.scrollTop ?? 0,
      top: scrollY,
    };
    try {
      sessionStorage.setItem(NOTE, JSON.stringify(state));
    } catch {
      // without a memory the page begins anew
    }
  }

  /** Bring back what `keep` noted. */
  async function resume() {
    let state;
    try {
      state = JSON.parse(sessionStorage.getItem(NOTE));
      sessionStorage.removeItem(NOTE);
    } catch {
      return;
    }
    if (!state) return;
    settings().forEach((node, index) => {
      const value = state.values[index];
      const key = node.type === "checkbox" ? "checked" : "value";
      if (value === undefined || node[key] === value) return;
      node[key] = value;
      if (node.closest(".play")) node.dispatchEvent(new Event(node.type === "range" ? "input" : "change", { bubbles: true }));
    });
    for (const word of state.chosen) chosen.add(word);
    for (const button of filters) button.ariaPressed = String(chosen.has(button.dataset.verdict));
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const touched = cards.filter((card) => card.table in state.sorted || state.all.includes(card.table));
    await Promise.all(touched.map((card) => card.load()));
    for (const card of touched) {
      if (state.all.includes(card.table)) card.short = false;
      if (state.sorted[card.table]) card.sort(...state.sorted[card.table]);
    }
    await updateAll();
    for (const card of touched) card.update();
    foldings().forEach((node, index) => (node.open = state.open[index] ?? node.open));
    const current = cards.find((card) => card.element.classList.contains("current"));
    current?.scroll(state.box);
    // Charts above may not be drawn yet: their place is kept, so that the way down is about the same.
    scrollTo(0, state.top);
  }

  async function follow() {
    const line = document.querySelector(".live");
    let stamp;
    for (;;) {
      try {
        const now = await (await fetch("status.json", { cache: "no-store" })).json();
        if (stamp !== undefined && now.stamp !== stamp) {
          keep();
          return location.reload();
        }
        stamp = now.stamp;
        line.textContent = now.text;
      } catch {
        line.textContent = "The server does not answer; the page shows what it had.";
      }
      line.hidden = line.textContent === "";
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }

  if (memory.get() === "zh") speak("zh");
  document.addEventListener("DOMContentLoaded", async () => {
    drawing = true;
    for (const container of waiting.keys()) observer.observe(container);
    await route();
    await resume();
    if (location.protocol.startsWith("http")) follow();
  });
})();
