"use strict";
(() => {
  const section = document.getElementById("page-playground");
  const data = JSON.parse(section.dataset.figures);

  // --- chance: SplitMix (Steele et al. 2014) cut to 32 bits. The n-th number needs none before it ---

  function mix(x) {
    x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
    x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
    return (x ^ (x >>> 16)) >>> 0;
  }

  /** The i-th 32-bit word of a stream. */
  const word = (base, i) => mix(base + Math.imul(i + 1, 0x9e3779b9));
  const baseOf = (seed, stream) => mix(mix(seed) + stream);

  /** n standard normal numbers of a stream, by Box and Muller from uniform numbers of 53 bits. */
  function normals(seed, stream, n) {
    const base = baseOf(seed, stream);
    const uniform = (i) => ((word(base, 2 * i) >>> 5) * 2 ** 26 + (word(base, 2 * i + 1) >>> 6)) / 2 ** 53;
    const drawn = new Float64Array(n);
    for (let i = 0; i < n; i += 2) {
      const radius = Math.sqrt(-2 * Math.log(1 - uniform(i)));
      const angle = 2 * Math.PI * uniform(i + 1);
      drawn[i] = radius * Math.cos(angle);
      if (i + 1 < n) drawn[i + 1] = radius * Math.sin(angle);
    }
    return drawn;
  }

  /** A random order of 0..n-1 that is not this one (Fisher and Yates). */
  function shuffled(seed, stream, n) {
    const base = baseOf(seed, stream);
    const order = Array.from({ length: n }, (_, i) => i);
    for (let turn = 0; order.every((from, to) => from === to); turn += 1) {
      for (let i = n - 1; i > 0; i -= 1) {
        const j = word(base, turn * n + i) % (i + 1);
        [order[i], order[j]] = [order[j], order[i]];
      }
    }
    return order;
  }

  // --- attention. A matrix is a list of rows ---

  function dot(a, b) {
    let sum = 0;
    for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
    return sum;
  }

  const transposed = (rows) => Array.from(rows[0], (_, j) => Float64Array.from(rows, (row) => row[j]));
  const product = (a, b) => {
    const columns = transposed(b);
    return a.map((row) => Float64Array.from(columns, (column) => dot(row, column)));
  };
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  const mean = (values) => total(values) / values.length;
  const rowsOf = (flat, width) =>
    Array.from({ length: flat.length / width }, (_, i) => flat.subarray(i * width, (i + 1) * width));

  function softmax(logits) {
    const top = Math.max(...logits);
    const powers = Float64Array.from(logits, (logit) => Math.exp(logit - top));
    const sum = total(powers);
    return powers.map((power) => power / sum);
  }

  /** In nats; 0 log 0 is 0. */
  const entropy = (weights) => -total(weights.map((weight) => (weight > 0 ? weight * Math.log(weight) : 0)));

  /** Component 2i of row n is sin(n / 10000^(2i/d)), component 2i + 1 its cosine (Vaswani et al. 2017). */
  function sinusoid(length, width) {
    const angle = (n, k) => n / 10000 ** ((k - (k % 2)) / width);
    const component = (n, k) => (k % 2 ? Math.cos(angle(n, k)) : Math.sin(angle(n, k)));
    return Array.from({ length }, (_, n) => Float64Array.from({ length: width }, (_, k) => component(n, k)));
  }

  function selfAttention(tokens, head) {
    const [queries, keys, values] = [head.query, head.key, head.value].map((matrix) => product(tokens, matrix));
    const scale = Math.sqrt(queries[0].length);
    const weights = queries.map((query) => softmax(keys.map((key) => dot(query, key) / scale)));
    return { weights, outputs: product(weights, values) };
  }

  // --- 1: equivariance ---

  /** Tokens [n_tokens, embed_dim] and the three maps of a head, N(0, 1/embed_dim), of a seed. */
  function drawHead(seed) {
    const { n_tokens: n, embed_dim: width } = data.shuffle;
    const matrix = (stream) => rowsOf(normals(seed, stream, width * width).map((x) => x / Math.sqrt(width)), width);
    return { tokens: rowsOf(normals(seed, 0, n * width), width), query: matrix(1), key: matrix(2), value: matrix(3) };
  }

  /** Attention before and after tokens take a new order (place i gets token order[i]), and the largest |difference|. */
  function equivariance(head, order, coded) {
    const code = sinusoid(head.tokens.length, head.tokens[0].length);
    const placed = (rows) => (coded ? rows.map((row, n) => row.map((x, k) => x + code[n][k])) : rows);
    const before = selfAttention(placed(head.tokens), head);
    const after = selfAttention(placed(order.map((from) => head.tokens[from])), head);
    const apart = order.map((from, to) => after.outputs[to].map((x, k) => Math.abs(x - before.outputs[from][k])));
    const largest = Math.max(...before.outputs.map((row) => Math.max(...row.map(Math.abs))));
    return { before, after, largest, error: Math.max(...apart.map((row) => Math.max(...row))) };
  }

  // --- 2: entropy against head_dim. A smaller d takes the first components of the same vectors ---

  /** Dot products [query][head_dim][key] of a seed. */
  function drawLogits(seed) {
    const { n_queries: count, n_keys: keys, head_dim: dims } = data.entropy;
    const most = dims.at(-1);
    return Array.from({ length: count }, (_, query) => {
      const drawn = normals(seed, query, (keys + 1) * most);
      const found = dims.map(() => new Float64Array(keys));
      for (let key = 0; key < keys; key += 1) {
        let [sum, k] = [0, 0];
        const start = (key + 1) * most;
        dims.forEach((d, at) => {
          for (; k < d; k += 1) sum += drawn[k] * drawn[start + k];
          found[at][key] = sum;
        });
      }
      return found;
    });
  }

  /** What the queries of `drawLogits` show at the at-th head_dim. */
  function collapse(drawn, at, scaled) {
    const scale = scaled ? Math.sqrt(data.entropy.head_dim[at]) : 1;
    const logits = drawn.map((query) => query[at].map((logit) => logit / scale));
    const weights = logits.map(softmax);
    const entropies = weights.map(entropy);
    const average = mean(entropies);
    const variance = total(entropies.map((value) => (value - average) ** 2)) / (entropies.length - 1);
    return {
      entropy: average,
      half: data.entropy.quantile * Math.sqrt(variance / entropies.length),
      largest: mean(weights.map((row) => Math.max(...row))),
      spread: Math.sqrt(mean(logits.map((row) => mean(row.map((logit) => logit ** 2))))),
      logits: logits[0],
      weights: weights[0],
    };
  }

  // --- 3: trained pools ---

  /** n sequences of the 8-token task, each [length, embed_dim]. */
  function drawSequences(seed, n) {
    const { length, embed_dim: width } = data.pools;
    const tokens = rowsOf(normals(seed, 0, n * length * width), width);
    return Array.from({ length: n }, (_, i) => tokens.slice(i * length, (i + 1) * length));
  }

  /** A trained pool with what the code adds to its keys and values at each position. */
  function poolAt(index) {
    const { length, embed_dim: width, strength, key, value, bias } = data.pools;
    const code = sinusoid(length, width);
    const [k, v] = [key[index], value[index]];
    const added = (direction) => code.map((row) => strength[index] * dot(row, direction));
    return { key: k, value: v, bias: bias[index], keyCode: added(k), valueCode: added(v) };
  }

  /** Logits in two parts, weights and answer of a pool for one sequence. */
  function answer(pool, tokens) {
    const content = tokens.map((token) => dot(token, pool.key));
    const logits = content.map((logit, n) => logit + pool.keyCode[n]);
    const weights = softmax(logits);
    const values = tokens.map((token, n) => dot(token, pool.value) + pool.valueCode[n]);
    const output = dot(weights, values) + pool.bias;
    return { content, position: pool.keyCode, logits, weights, output, right: output * (tokens[0][0] > 0 ? 1 : -1) > 0 };
  }

  /** Share of right answers with its 95 % interval (Wilson), and the mean weight of each position. */
  function score(pool, sequences) {
    const n = sequences.length;
    let right = 0;
    const weights = new Float64Array(sequences[0].length);
    for (const tokens of sequences) {
      const one = answer(pool, tokens);
      right += one.right;
      one.weights.forEach((weight, at) => (weights[at] += weight / n));
    }
    const [share, z2] = [right / n, 1.959963984540054 ** 2];
    const middle = (share + z2 / (2 * n)) / (1 + z2 / n);
    const half = (Math.sqrt(z2) / (1 + z2 / n)) * Math.sqrt((share * (1 - share)) / n + z2 / (4 * n * n));
    return { accuracy: share, low: middle - half, high: middle + half, weights };
  }

  // --- 4: the row of "it" ---

  function row(temperature, masked) {
    const logits = data.cat.rows.map(({ score: printed, later }) =>
      masked && later ? -Infinity : Number(printed) / temperature,
    );
    const weights = softmax(logits);
    // As the register of printed numbers compares: both ends included, and their own rounding allowed for.
    const fits = data.cat.rows.map(({ low, high }, i) => {
      const slack = 8 * Number.EPSILON * Math.max(Math.abs(low), Math.abs(high));
      return low - slack <= weights[i] && weights[i] <= high + slack;
    });
    return { logits, weights, entropy: entropy(weights), sum: total(weights), fits };
  }

  window.attnreproPlayground = {
    ...{ answer, collapse, drawHead, drawLogits, drawSequences, entropy, equivariance, normals, poolAt, row, score },
    ...{ selfAttention, shuffled, sinusoid, softmax },
  };

  // --- what is seen ---

  const language = document.getElementById("page-language");
  const say = (english, chinese) => (language.ariaPressed === "true" ? chinese : english);
  const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : value > 0 ? "∞" : "−∞").replace("-", "−");
  const short = (value) => (value === 0 ? "0" : value < 1e-3 ? value.toExponential(1).replace("-", "−") : value.toFixed(3));

  function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  /** A text of the page in both languages: the page's switch finds it by its data-zh. */
  function both(node, english, chinese) {
    Object.assign(node.dataset, { en: english, zh: chinese });
    node.textContent = say(english, chinese);
    if (node.textContent === chinese) node.lang = "zh-Hant";
    return node;
  }

  function draw(tag, attributes = {}, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const shade = (node, share) => {
    node.style.setProperty("--share", share);
    return node;
  };

  /** A table; a head is a text or [English, Chinese], a cell a text, a node, or [text, share] for a bar under it. */
  function sheet(place, name, heads, lines) {
    place.ariaLabel = name;
    const cell = (value) =>
      Array.isArray(value) ? shade(make("td", { className: "bar" }, value[0]), value[1]) : make("td", {}, value);
    const column = (words) => (Array.isArray(words) ? both(make("th", { scope: "col" }), ...words) : make("th", { scope: "col" }, words));
    const head = make("tr", {}, ...heads.map(column));
    const body = lines.map(({ name: text, cells }) => make("tr", {}, make("th", { scope: "row" }, text), ...cells.map(cell)));
    place.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  }

  /** Axes at the width that there is, and the means to put marks on them; `name` says what the picture shows. */
  function plot(place, name, x, y) {
    const [width, height] = [Math.max(260, place.clientWidth), 230];
    const [left, right, top, bottom] = [64, 12, 12, 44];
    const scale = (axis, from, to) => (value) => {
      const [low, high, at] = [axis.low, axis.high, value].map(axis.by ?? ((v) => v));
      return from + ((at - low) / (high - low)) * (to - from);
    };
    const [px, py] = [scale(x, left, width - right), scale(y, height - bottom, top)];
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": name });
    for (const tick of y.ticks) {
      picture.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: py(tick), y2: py(tick) }));
      const label = draw("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" });
      label.textContent = y.show(tick);
      picture.append(label);
    }
    for (const tick of x.ticks) {
      const label = draw("text", { x: px(tick), y: height - bottom + 17, "text-anchor": "middle" });
      label.textContent = x.show(tick);
      picture.append(label);
    }
    const title = draw("text", { class: "axis", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" });
    picture.append(both(title, ...x.title));
    const high = draw("text", { class: "axis", x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle" });
    high.setAttribute("transform", `rotate(-90 12 ${(top + height - bottom) / 2})`);
    picture.append(both(high, ...y.title));
    place.replaceChildren(picture);
    const add = (tag, attributes) => picture.append(draw(tag, attributes));
    return {
      line: (points, kind) => add("polyline", { class: kind, points: points.map(([a, b]) => `${px(a)},${py(b)}`).join(" ") }),
      rule: (a, low, up, kind) => add("line", { class: kind, x1: px(a), x2: px(a), y1: py(low), y2: py(up) }),
      now: (a) => add("line", { class: "now", x1: px(a), x2: px(a), y1: top, y2: height - bottom }),
      cross: (a, b) => add("path", { class: "cross", d: `M${px(a) - 4} ${py(b) - 4}l8 8m0 -8l-8 8` }),
      dot: (a, b, kind) => {
        if (kind.startsWith("one")) add("circle", { class: kind, cx: px(a), cy: py(b), r: 4 });
        else add("path", { class: kind, d: `M${px(a)} ${py(b) - 5}l5 9h-10z` });
      },
    };
  }

  const part = (id) => {
    const root = document.getElementById(id);
    return (selector) => root.querySelector(selector);
  };

  // --- 1 ---

  const LAST = 30; // shuffles that the picture of errors keeps
  const FLOOR = 1e-17; // where an error of exactly 0 is drawn

  function shuffling() {
    const at = part("play-shuffle");
    const words = data.cat.sentence.slice(0, data.shuffle.n_tokens).map((text) => text.split(" ")[0]);
    let [seed, turn] = [1, 0];
    let head, order, errors;

    function start() {
      head = drawHead(seed);
      turn = 0;
      errors = [];
      step();
    }

    function step() {
      turn += 1;
      order = shuffled(seed, 3 + turn, words.length);
      const [plain, coded] = [false, true].map((flag) => equivariance(head, order, flag).error);
      errors = [...errors, { turn, plain, coded }].slice(-LAST);
    }

    function map(place, weights, names, name) {
      const top = Math.max(...weights.flatMap((weighed) => [...weighed]));
      const token = (text) => make("span", { lang: "zh-Hans" }, text);
      const lines = weights.map((weighed, i) => ({
        name: token(names[i]),
        cells: Array.from(weighed, (weight) => shade(make("span", {}, weight.toFixed(2).replace(/^0/, "")), weight / top)),
      }));
      sheet(place, name, ["", ...names.map(token)], lines);
    }

    function show() {
      const coded = at(".coded").checked;
      const { before, after, largest } = equivariance(head, order, coded);
      map(at(".first-order"), before.weights, words, say("Attention in the first order", "原來的順序的注意力"));
      const moved = order.map((from) => words[from]);
      map(at(".new-order"), after.weights, moved, say("Attention after the shuffle", "打亂之後的注意力"));
      const last = errors.at(-1);
      at(".plain-error").textContent = short(last.plain);
      at(".coded-error").textContent = short(last.coded);
      at(".largest").textContent = largest.toFixed(3);
      const name = say(
        `Equivariance error of ${errors.length} shuffles: ${short(last.plain)} without positions, ${short(last.coded)} with them`,
        `${errors.length} 次打亂的等變誤差：無位置編碼 ${short(last.plain)}，有位置編碼 ${short(last.coded)}`,
      );
      const first = errors[0].turn;
      const x = {
        ...{ low: first - 0.5, high: first + LAST - 0.5, title: ["shuffle", "第幾次打亂"] },
        ...{ ticks: [0, 9, 19, 29].map((k) => first + k), show: String },
      };
      const y = {
        ...{ low: FLOOR, high: 10, by: Math.log10, ticks: [1e-16, 1e-12, 1e-8, 1e-4, 1], title: ["error", "誤差"] },
        show: (tick) => (tick === 1 ? "1" : `1e−${-Math.round(Math.log10(tick))}`),
      };
      const marks = plot(at(".history"), name, x, y);
      for (const one of errors) {
        marks.dot(one.turn, Math.max(one.plain, FLOOR), "one");
        marks.dot(one.turn, Math.max(one.coded, FLOOR), "two");
      }
    }

    at(".shuffle").addEventListener("click", () => {
      step();
      show();
    });
    at(".other").addEventListener("click", () => {
      seed += 1;
      start();
      show();
    });
    at(".coded").addEventListener("change", show);
    start();
    return show;
  }

  // --- 2 ---

  function collapsing() {
    const at = part("play-entropy");
    const { head_dim: dims, theory, printed, n_keys: keys } = data.entropy;
    const slider = at(".head-dim");
    slider.max = dims.length - 1;
    slider.value = dims.indexOf(64);
    let seed = 1;
    let curves;

    function start() {
      const drawn = drawLogits(seed);
      curves = { true: dims.map((_, i) => collapse(drawn, i, true)), false: dims.map((_, i) => collapse(drawn, i, false)) };
    }

    function show() {
      const [index, scaled] = [Number(slider.value), at(".scaled").checked];
      const [found, exact] = [curves[scaled][index], theory[scaled ? "scaled" : "unscaled"]];
      slider.ariaValueText = `d = ${dims[index]}`;
      at(".head-dim-now").textContent = `d = ${dims[index]}`;
      at(".entropy").textContent = `${fixed(found.entropy, 3)} ± ${fixed(found.half, 3)}`;
      at(".entropy-theory").textContent = fixed(exact.entropy[index], 4);
      at(".largest").textContent = fixed(found.largest, 3);
      at(".largest-theory").textContent = fixed(exact.max_weight[index], 4);
      at(".spread").textContent = fixed(found.spread, 3);
      at(".spread-theory").textContent = fixed(exact.logit_sd[index], 3);
      const name = say(
        `Entropy against d: at d = ${dims[index]} ${found.entropy.toFixed(3)} nat here and ${exact.entropy[index].toFixed(3)} by theory`,
        `熵對 d：d = ${dims[index]} 時此處 ${found.entropy.toFixed(3)} nat，理論 ${exact.entropy[index].toFixed(3)}`,
      );
      const x = {
        ...{ low: dims[0] / 1.2, high: dims.at(-1) * 1.2, by: Math.log2, title: ["dimension d", "維度 d"] },
        ...{ ticks: [4, 16, 64, 256, 1024], show: String },
      };
      const y = { low: 0, high: Math.log(keys), ticks: [0, 0.5, 1, 1.5, 2, 2.5], show: String, title: ["entropy (nat)", "熵（nat）"] };
      const marks = plot(at(".curve"), name, x, y);
      marks.now(dims[index]);
      for (const [flag, kind] of [[true, "one"], [false, "two"]]) {
        const [points, law] = [curves[flag], flag ? "scaled" : "unscaled"];
        const on = flag === scaled ? "" : " off";
        marks.line(dims.map((d, i) => [d, theory[law].entropy[i]]), `theory ${kind}${on}`);
        points.forEach((point, i) => marks.rule(dims[i], point.entropy - point.half, point.entropy + point.half, `interval ${kind}${on}`));
        points.forEach((point, i) => marks.dot(dims[i], point.entropy, `${kind}${on}`));
        for (const [d, text] of printed[law]) marks.cross(d, Number(text));
      }
      const lines = Array.from(found.weights, (weight, i) => ({
        name: String(i + 1),
        cells: [fixed(found.logits[i], 2), [weight.toFixed(4), weight]],
      }));
      const heads = [["key", "鍵"], ["logit", "分數"], ["weight", "權重"]];
      sheet(at(".keys"), say("Weights of the first query", "第一個查詢的權重"), heads, lines);
    }

    slider.addEventListener("input", show);
    at(".scaled").addEventListener("change", show);
    at(".other").addEventListener("click", () => {
      seed += 1;
      start();
      show();
    });
    start();
    return show;
  }

  // --- 3 ---

  function strengthening() {
    const at = part("play-strength");
    const { strength, test_accuracy: stated, n_test: tested, length } = data.pools;
    const { n_sequences: n, without_positions: limit } = data.task;
    const slider = at(".strength");
    slider.max = strength.length - 1;
    slider.value = strength.indexOf(1);
    const sequences = drawSequences(1, n);
    const pools = strength.map((_, index) => poolAt(index));
    const scores = pools.map((pool) => score(pool, sequences));
    let chosen = 0;

    function show() {
      const index = Number(slider.value);
      const [pool, found] = [pools[index], scores[index]];
      const one = answer(pool, sequences[chosen]);
      slider.ariaValueText = `× ${strength[index]}`;
      at(".strength-now").textContent = `× ${strength[index]}`;
      at(".accuracy").textContent = `${fixed(found.accuracy, 3)} [${fixed(found.low, 3)}, ${fixed(found.high, 3)}]`;
      at(".stated").textContent = `${stated[index]} (n = ${tested})`;
      at(".first").textContent = fixed(found.weights[0], 3);
      const verdict = one.right ? say("right", "答對") : say("wrong", "答錯");
      at(".answered").textContent = `${one.right ? "✓" : "✗"} ${verdict} (${fixed(one.output, 2)})`;
      const name = say(
        `Accuracy against strength: at ${strength[index]} ${found.accuracy.toFixed(3)} here, ${stated[index]} after training`,
        `正確率對強度：強度 ${strength[index]} 時此處 ${found.accuracy.toFixed(3)}，訓練後所測 ${stated[index]}`,
      );
      const x = {
        ...{ low: -0.05, high: 36, by: (value) => Math.asinh(2 * value), title: ["strength", "強度"] },
        ...{ ticks: [0, 0.5, 1, 2, 4, 8, 16, 32], show: String },
      };
      const y = { low: 0.45, high: 1, ticks: [0.5, 0.6, 0.7, 0.8, 0.9, 1], show: (tick) => tick.toFixed(1), title: ["accuracy", "正確率"] };
      const marks = plot(at(".curve"), name, x, y);
      marks.now(strength[index]);
      marks.line([[0, limit], [strength.at(-1), limit]], "theory");
      marks.line(strength.map((s, i) => [s, scores[i].accuracy]), "through one");
      scores.forEach((s, i) => marks.rule(strength[i], s.low, s.high, "interval one"));
      scores.forEach((s, i) => marks.dot(strength[i], s.accuracy, i === index ? "one" : "one off"));
      strength.forEach((s, i) => marks.cross(s, stated[i]));
      const lines = Array.from({ length }, (_, k) => ({
        name: String(k),
        cells: [
          ...[one.content[k], one.position[k], one.logits[k]].map((value) => fixed(value, 2)),
          ...[one.weights[k], found.weights[k]].map((weight) => [weight.toFixed(3), weight]),
        ],
      }));
      const heads = [["place", "位置"], ["content", "內容"], ["position", "位置編碼"], ["logit", "分數"], ["weight", "權重"], ["mean weight", "平均權重"]];
      sheet(at(".positions"), say("Logits and weights of this sequence", "這個序列的分數與權重"), heads, lines);
    }

    slider.addEventListener("input", show);
    at(".other").addEventListener("click", () => {
      chosen = (chosen + 1) % n;
      show();
    });
    const { command, environment, n_train: trained, steps } = data.pools;
    at(".origin-of").append(
      both(make("span"), `Trained on ${trained} sequences for ${steps} steps (${environment}):`, `以 ${trained} 個序列訓練 ${steps} 步（${environment}）：`),
      " ",
      make("code", {}, command),
    );
    return show;
  }

  // --- 4 ---

  function looking() {
    const at = part("play-cat");
    const slider = at(".temperature");
    const { sentence, query, rows } = data.cat;
    for (const text of sentence) {
      const tag = text === query ? "mark" : "span";
      at(".sentence").append(make(tag, {}, text.split(" ")[0]));
    }

    function show() {
      const [temperature, masked] = [10 ** Number(slider.value), at(".masked").checked];
      const found = row(temperature, masked);
      slider.ariaValueText = temperature.toFixed(2);
      at(".temperature-now").textContent = temperature.toFixed(2);
      at(".entropy").textContent = fixed(found.entropy, 4);
      at(".sum").textContent = fixed(found.sum, 4);
      const fitting = found.fits.filter(Boolean).length;
      at(".fits").textContent = say(`${fitting} of ${rows.length}`, `${rows.length} 個之中 ${fitting} 個`);
      const lines = rows.map(({ token, score: printed, printed: weight, low, high }, i) => {
        const [text, gloss] = token.split(" ");
        const fits = found.fits[i];
        const sign = make("span", { className: `chip ${fits ? "agrees" : "disagrees"}` }, fits ? say("fits", "相符") : say("differs", "不符"));
        return {
          name: make("span", { lang: "zh-Hans" }, text, make("small", { lang: "en" }, gloss)),
          cells: [printed, fixed(found.logits[i], 2), [found.weights[i].toFixed(4), found.weights[i]], weight || `${low}–${high}`, sign],
        };
      });
      const heads = [["word", "詞"], ["score", "分數"], ["logit", "除以溫度"], ["weight", "權重"], ["printed", "所印"], ""];
      sheet(at(".words"), say('Weights of "it"', "「它」的權重"), heads, lines);
    }

    slider.addEventListener("input", show);
    at(".masked").addEventListener("change", show);
    at(".one").addEventListener("click", () => {
      slider.value = 0;
      show();
    });
    return show;
  }

  // --- nothing is computed before somebody comes here ---

  let shown;

  function wake() {
    if (document.body.dataset.view !== section.id) return;
    shown ??= [shuffling(), collapsing(), strengthening(), looking()];
    for (const show of shown) show();
    section.dataset.ready = "";
  }

  new MutationObserver(wake).observe(document.body, { attributeFilter: ["data-view"] });
  window.addEventListener("resize", wake);
  language.addEventListener("click", wake);
})();
