// The page around calc.js: reads the fields, shows what calc computes, keeps the settings in the
// address. Models and accelerators are in the JSON beside it, made by site/calculator.py.
(() => {
  const MOST = { context: 2 ** 30, batch: 2 ** 20, gpus: 2 ** 16 };
  const SLIDERS = { context: [128, 2 ** 20], batch: [1, 2 ** 10] };
  const SVG = "http://www.w3.org/2000/svg";

  // ── text ──────────────────────────────────────────────────────────────────────────────────────

  const both = (bytes) => `${calc.formatSiBytes(bytes)} (${calc.formatBytes(bytes)})`;
  const figure = (value) => calc.grouped(calc.fixed(value, value < 1000 ? 1 : 0));
  const time = (seconds) =>
    seconds >= 10 ? `${figure(seconds)} s`
      : seconds >= 1e-4 ? `${calc.grouped(calc.fixed(seconds * 1e3, 2))} ms`
        : `${calc.fixed(seconds * 1e6, 2)} µs`;
  const percent = (part, all) => {
    const share = (100 * Number(part)) / Number(all);
    return share < 0.05 ? "below 0.1 %" : `${calc.fixed(share, 1)} %`;
  };
  const many = (count, one) => `${calc.grouped(count)} ${one}${count === 1n ? "" : "s"}`;
  const fitting = (users) =>
    users === 0 ? "none fits" : users === 1 ? "1 fits" : `${calc.grouped(users)} fit`;
  const LIMITS = {
    weights: "the weights do not fit",
    cache: "memory for the cache",
    none: "none, the batch fits",
  };
  const ROOFS = { memory: "memory bandwidth", compute: "arithmetic" };

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (parent, tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };

  // ── numbers ───────────────────────────────────────────────────────────────────────────────────

  // 1, 2, 3, 4, 6, 8, 12 … between two powers of two: where a slider stops.
  const stops = ([low, high]) => {
    const found = [];
    for (let n = low; n <= high; n *= 2) found.push(n, ...(n > 1 && n < high ? [n * 1.5] : []));
    return found;
  };

  // All that is shown of one state of the fields.
  const computed = (asked) => {
    const { model, accelerator } = asked;
    const arch = calc.model(model);
    const fit = calc.plan(arch, accelerator, { ...asked, users: asked.batch });
    const result = {
      ...asked,
      arch,
      fit,
      occupancy: calc.occupancy(fit, asked.batch),
      parameters: calc.countParameters(arch),
      perToken: calc.kvBytesPerToken(arch, asked.cacheDtype),
      beyond: calc.kvBytesPerToken(arch, asked.cacheDtype, true),
      state: calc.fixedStateBytes(arch, asked.cacheDtype),
      cacheBytes: calc.kvBytes(arch, asked.context, asked.cacheDtype, asked.batch),
      longest: calc.maxTokens(arch, fit.poolBytes, asked.cacheDtype, asked.batch),
      compute: calc.computeDtype(accelerator, asked.weightDtype),
      step: null,
    };
    if (!Object.hasOwn(accelerator.peak_flops, result.compute)) return result;
    const step = (batch) => calc.decodeStep(arch, accelerator, { ...asked, batch });
    const last = widest(asked.batch, fit.wholeUsers);
    const fitting = Math.min(Math.max(Number(fit.wholeUsers), 1), last);
    const batches = new Set([Number(asked.batch), fitting]);
    for (let quarter = 0; 2 ** (quarter / 4) <= last; quarter += 1) {
      batches.add(Math.round(2 ** (quarter / 4)));
    }
    result.step = step(asked.batch);
    result.ceilings = calc.rateCeilings(arch, accelerator, asked);
    result.curve = [...batches].sort((a, b) => a - b).map((batch) => ({ batch, ...step(BigInt(batch)) }));
    return result;
  };

  // The largest batch on the curve: room beyond the one asked for and, within reason, what fits.
  const widest = (batch, users) => {
    const wanted = Math.max(64, 2 * Number(batch), Math.min(2 * Number(users), 2 ** 14));
    return 2 ** Math.ceil(Math.log2(wanted));
  };

  // ── what is written ───────────────────────────────────────────────────────────────────────────

  const sentence = (r) => {
    const { fit, step } = r;
    const batch = `${many(r.batch, "sequence")} of ${many(r.context, "token")}`;
    const [weights, cache, memory, usable] = [fit.weightBytes, r.cacheBytes, fit.memoryBytes,
      fit.memoryBytes - fit.reservedBytes].map(calc.formatSiBytes);
    const fits = fit.limit === "none";
    const short = fit.limit === "weights" ? "the weights alone are too large"
      : `${calc.grouped(fit.wholeUsers)} of the sequences would`;
    const says = [
      `${r.model.title} on ${r.gpus} × ${r.accelerator.name}, ${batch}: ${weights} of weights and`,
      `${cache} of cache ${fits ? "fit" : "do not fit"} in ${usable} (${memory} less ${r.percent} %)`,
    ];
    if (fits) says[1] += ".";
    else says[1] += `; ${short}. ${calc.grouped(fit.gpusNeeded)} of the accelerators hold all.`;
    if (step === null) return says.join(" ");
    const [all, each] = [step.tokensPerSecond, step.tokensPerSecond / Number(r.batch)].map(figure);
    const rates = r.batch > 1n ? `${all} tokens/s together, ${each} each` : `${all} tokens/s`;
    says.push(
      fits ? "A decode step takes" : "With memory enough, a decode step would take",
      `at least ${time(step.seconds)}, for at most ${rates}; ${ROOFS[step.bound]} is the limit.`,
      "A bound, not a prediction.",
    );
    return says.join(" ");
  };

  // Groups of rows: a label, then a size (BigInt, shown in both units) or a text.
  const counts = (r) => {
    const { fit, step, arch } = r;
    const expert = arch.layers.find((layer) => layer.num_experts);
    const windowed = arch.layers.some((layer) => layer.window);
    const groups = [
      [`The model, weights in ${r.weightDtype}`, [
        ["parameters", calc.formatCount(r.parameters.total)],
        ...(expert ? [["of which a token passes", calc.formatCount(r.parameters.active)]] : []),
        ["weights", fit.weightBytes],
      ]],
      [`The cache, in ${r.cacheDtype}`, [
        ["a token", r.perToken],
        ...(windowed ? [["a token once windows are full", r.beyond]] : []),
        ...(r.state ? [["fixed state of a sequence", r.state]] : []),
        [`a sequence of ${many(r.context, "token")}`, fit.bytesPerUser],
        [`the batch of ${calc.grouped(r.batch)}`, r.cacheBytes],
      ]],
      [`The node, ${r.gpus} × ${r.accelerator.name}`, [
        ["memory", fit.memoryBytes],
        [`reserve of ${r.percent} %`, fit.reservedBytes],
        ["left for the cache", fit.poolBytes],
        ["tokens that fit", calc.formatCount(fit.tokens)],
        ["sequences that fit", `${calc.grouped(fit.wholeUsers)} (${figure(fit.users)})`],
        ["longest context of the batch",
          r.longest === null ? "any" : `${calc.grouped(r.longest)} tokens`],
        ["accelerators for the batch", calc.grouped(fit.gpusNeeded)],
        ["limit", LIMITS[fit.limit]],
      ]],
    ];
    if (step === null) return groups;
    const read = !expert ? 0
      : calc.distinctExperts(expert.num_experts, expert.experts_per_token, r.batch);
    groups.push(["A decode step, at least", [
      ["weights read", step.weightBytes],
      ...(expert ? [["experts read in a layer",
        `${calc.fixed(read, 1)} of ${expert.num_experts}, expected`]] : []),
      ["cache read and written", step.cacheBytes],
      ["activations", step.activationBytes],
      ["all bytes", step.bytes],
      ["FLOPs", calc.formatCount(step.flops)],
      ["FLOP/byte", `${figure(step.intensity)}, ridge ${figure(step.ridge)}`],
      ["time for the bytes", time(step.memorySeconds)],
      [`time for the FLOPs, in ${r.compute}`, time(step.computeSeconds)],
      ["bound by", ROOFS[step.bound]],
      ["step time, a bound", `at least ${time(step.seconds)}`],
      ["tokens/s, a bound", `at most ${figure(step.tokensPerSecond)}`],
      ["tokens/s of each sequence", `at most ${figure(step.tokensPerSecond / Number(r.batch))}`],
    ]]);
    return groups;
  };

  const notes = (r) => {
    const { model, accelerator } = r;
    const found = [];
    if (r.step === null) {
      const known = Object.keys(accelerator.peak_flops).join(", ");
      found.push(`${accelerator.name} has no rate for ${r.compute} (it has ${known}), so there is no `
        + "bound on a step.");
    }
    if (model.max_context !== null && r.context > BigInt(model.max_context)) {
      found.push(`${model.title} is made for ${calc.grouped(model.max_context)} tokens.`);
    }
    const heads = r.arch.layers.map((layer) => layer.num_kv_heads).filter(Boolean);
    const fewest = heads.reduce((least, n) => (n < least ? n : least), heads[0] ?? 0n);
    if (fewest && fewest < r.gpus) {
      found.push(`With ${many(fewest, "key-value head")} on ${r.gpus} accelerators this supposes that `
        + "attention is split by sequence; split by head, the cache is held several times.");
    }
    if ([r.weightDtype, r.cacheDtype].some((dtype) => calc.BITS[dtype] < 16n)) {
      found.push("Scales of quantised numbers are not counted.");
    }
    if (model.unverified) found.push(`Not confirmed where the shape was read: ${model.unverified}.`);
    if (model.note) found.push(model.note);
    return found;
  };

  // ── what is drawn ─────────────────────────────────────────────────────────────────────────────

  // A bar and its key. Parts: class, label, bytes; what comes after the first `inside` bytes lies
  // beyond the end of the node.
  const drawBar = (root, caption, parts, inside) => {
    const shown = parts.filter(([, , bytes]) => bytes > 0n);
    const all = shown.reduce((total, [, , bytes]) => total + bytes, 0n);
    const bar = root.querySelector(".calc-bar");
    const key = root.querySelector(".calc-key");
    root.querySelector("figcaption").textContent = caption;
    bar.replaceChildren(...shown.map(([kind, , bytes]) => {
      const part = make("span", `calc-part is-${kind}`);
      part.style.flexGrow = Number(bytes) / Number(all);
      return part;
    }));
    if (inside !== undefined && inside < all) {
      const end = make("b", "calc-end");
      end.style.left = `${(100 * Number(inside)) / Number(all)}%`;
      bar.append(end);
    }
    key.replaceChildren(...shown.map(([kind, label, bytes]) => {
      const item = make("li");
      item.append(make("span", `calc-swatch is-${kind}`), `${label} `, make("b", "", both(bytes)));
      item.append(` ${percent(bytes, inside ?? all)}`);
      return item;
    }));
    const words = shown.map(([, label, bytes]) => `${label} ${calc.formatSiBytes(bytes)}`);
    bar.setAttribute("aria-label", `${caption}: ${words.join(", ")}`);
  };

  const drawNode = (root, r) => {
    const parts = [
      ["weights", "weights", r.occupancy.weights],
      ["cache", "cache", r.occupancy.cache],
      ["free", "free", r.occupancy.free],
      ["reserve", "reserve", r.occupancy.reserve],
      ["over", "does not fit", r.occupancy.over],
    ];
    const caption = `Memory of ${r.gpus} × ${r.accelerator.name}, ${both(r.fit.memoryBytes)}`;
    drawBar(root, caption, parts, r.fit.memoryBytes);
  };

  const drawMoved = (root, r) => {
    root.hidden = r.step === null;
    if (r.step === null) return;
    const parts = [
      ["weights", "weights", r.step.weightBytes],
      ["cache", "cache", r.step.cacheBytes],
      ["activations", "activations", r.step.activationBytes],
    ];
    drawBar(root, `Moved by a decode step, ${both(r.step.bytes)}`, parts);
  };

  // Width of a line of the chart's text, roughly, and the box around one that begins at (x, y).
  const advance = (text) => 6.9 * text.length;
  const box = (x, y, text) => [x - 2, y - 12, x + advance(text) + 2, y + 4];

  // The bound on tokens a second over the batch, both axes logarithmic.
  const drawCurve = (root, r) => {
    root.hidden = r.step === null;
    if (r.step === null) return;
    const [width, height, left, right, top, bottom] = [460, 300, 60, 20, 10, 42];
    const last = r.curve[r.curve.length - 1];
    const ceiling = Math.min(r.ceilings.memory, r.ceilings.compute);
    const low = r.curve[0].tokensPerSecond / 1.7;
    const other = Math.max(r.ceilings.memory, r.ceilings.compute);
    const high = 1.6 * Math.min(other < 4 * ceiling ? other : ceiling, 4 * last.tokensPerSecond);
    const x = (batch) => left + ((width - left - right) * Math.log(batch)) / Math.log(last.batch);
    const y = (rate) => height - bottom
      - ((height - top - bottom) * Math.log(rate / low)) / Math.log(high / low);
    const number = (value) => value.toFixed(1);

    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    const users = Number(r.fit.wholeUsers);
    const [first, here] = [r.curve[0], r.step].map((step) => figure(step.tokensPerSecond));
    svg.setAttribute("aria-label", `Bound on tokens a second by batch: ${first} at batch 1, `
      + `${here} at ${calc.grouped(r.batch)}, `
      + `${figure(last.tokensPerSecond)} at ${calc.grouped(last.batch)}; `
      + `${calc.grouped(users)} sequences fit`);

    const edge = x(Math.min(Math.max(users, 1), last.batch));
    if (users < last.batch) {
      draw(svg, "rect", { class: "calc-beyond", x: number(edge), y: top,
        width: number(width - right - edge), height: height - top - bottom });
    }
    const across = (kind, at) =>
      draw(svg, "line", { class: kind, x1: left, x2: width - right, y1: number(at), y2: number(at) });
    const down = (kind, at) =>
      draw(svg, "line", { class: kind, x1: number(at), x2: number(at), y1: top, y2: height - bottom });
    const write = (kind, at, below, text, anchor = "start") => draw(svg, "text",
      { class: kind, x: number(at), y: number(below), "text-anchor": anchor }, text);
    ticks(low, high).forEach((rate) => {
      across("calc-grid", y(rate));
      write("calc-tick", left - 6, y(rate) + 4, calc.grouped(rate), "end");
    });
    const stride = Math.log2(last.batch) > 8 ? 4 : 2;
    for (let batch = 1; batch <= last.batch; batch *= stride) {
      write("calc-tick", x(batch), height - bottom + 16, calc.grouped(batch), "middle");
    }
    write("calc-tick", (left + width - right) / 2, height - 6, "batch (sequences)", "middle");

    const taken = []; // boxes that the label of the point keeps clear of
    const roofs = [["compute", "arithmetic allows"], ["memory", "cache and activations allow"]];
    roofs.forEach(([roof, name]) => {
      const rate = r.ceilings[roof];
      if (!(rate < high / 1.3)) return;
      const crowded = rate <= ceiling && other < high / 1.3 && y(rate) - y(other) < 22;
      const at = y(rate) + (crowded ? 15 : -6);
      const text = `${name} ${figure(rate)}`;
      across("calc-ceiling", y(rate));
      write("calc-name", left + 6, at, text);
      taken.push(box(left + 6, at, text), [left, y(rate) - 2, width - right, y(rate) + 2]);
    });

    const point = (step) => [x(step.batch), y(step.tokensPerSecond)];
    const line = (steps) => steps.map((step) => point(step).map(number).join(",")).join(" ");
    const inside = r.curve.filter((step) => step.batch <= users);
    const outside = r.curve.slice(Math.max(0, inside.length - 1));
    draw(svg, "polyline", { class: "calc-line is-beyond", points: line(outside) });
    if (inside.length) draw(svg, "polyline", { class: "calc-line", points: line(inside) });
    taken.push(...r.curve.map(point).map(([px, py]) => [px - 4, py - 4, px + 4, py + 4]));
    if (users < last.batch) {
      down("calc-fits", edge);
      const near = edge > left + (width - left - right) * 0.72;
      const text = fitting(users);
      const at = near ? edge - 6 - advance(text) : edge + 6;
      write("calc-name", at, height - bottom - 8, text);
      taken.push(box(at, height - bottom - 8, text), [edge - 2, top, edge + 2, height - bottom]);
    }
    const [atX, atY] = [x(Number(r.batch)), y(r.step.tokensPerSecond)];
    const words = `${calc.grouped(r.batch)}: ${here} tokens/s`;
    const places = [18, -9, 34, 50, 66, -25].flatMap((below) =>
      [9, -9 - advance(words), -advance(words) / 2].map((along) => [atX + along, atY + below]));
    const overlaps = ([px, py]) => {
      const [x1, y1, x2, y2] = box(px, py, words);
      const out = x1 < left || x2 > width || y1 < top || y2 > height - bottom;
      const hit = taken.filter((t) => t[0] < x2 && t[2] > x1 && t[1] < y2 && t[3] > y1);
      return (out ? 100 : 0) + hit.length;
    };
    const freest = (best, next) => (overlaps(next) < overlaps(best) ? next : best);
    draw(svg, "circle", { class: "calc-point", cx: number(atX), cy: number(atY), r: 5.5 });
    write("calc-here", ...places.reduce(freest), words);
    root.querySelector(".calc-chart").replaceChildren(svg);
  };

  // Round numbers between two: powers of ten, with 2 and 5 between them where few fit.
  const ticks = (low, high) => {
    const found = [];
    const steps = Math.log10(high / low) > 2.2 ? [1] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
      found.push(...steps.map((n) => Number(`${n}e${power}`)));
    }
    return found.filter((n) => n >= low && n <= high);
  };

  const fillCounts = (table, r) => {
    table.querySelectorAll("tbody").forEach((body) => body.remove());
    counts(r).forEach(([group, rows]) => {
      const body = make("tbody");
      const title = make("th", "", group);
      title.colSpan = 3;
      title.scope = "rowgroup";
      body.append(make("tr"));
      body.firstChild.append(title);
      rows.forEach(([label, value]) => {
        const line = make("tr");
        const name = make("th", "", label);
        name.scope = "row";
        line.append(name);
        if (typeof value === "bigint") {
          const units = [calc.formatSiBytes(value), calc.formatBytes(value)];
          line.append(...units.map((text) => make("td", "", text)));
        } else {
          line.append(make("td", "", value));
          line.lastChild.colSpan = 2;
        }
        body.append(line);
      });
      table.append(body);
    });
  };

  const fillSweep = (table, r) => {
    const rows = (r.curve ?? []).filter(({ batch }) => Number.isInteger(Math.log2(batch)));
    table.querySelector("tbody").replaceChildren(...rows.map((step) => {
      const line = make("tr");
      const fits = step.batch <= r.fit.wholeUsers;
      [calc.grouped(step.batch), both(step.bytes), figure(step.intensity), time(step.seconds),
        figure(step.tokensPerSecond), figure(step.tokensPerSecond / step.batch), step.bound,
        fits ? "fits" : "does not fit"].forEach((text) => line.append(make("td", "", text)));
      return line;
    }));
  };

  const fillSources = (list, r) => {
    const entries = [
      [r.model.title, `${r.model.source} (read ${r.model.date})`],
      [r.accelerator.name, `${r.accelerator.source}, ${r.accelerator.date}`],
    ];
    if (r.accelerator.note) entries[1][1] += `; ${r.accelerator.note}`;
    const pair = ([name, text]) => [make("dt", "", name), make("dd", "", text)];
    list.replaceChildren(...entries.flatMap(pair));
  };

  // ── the page ──────────────────────────────────────────────────────────────────────────────────

  const start = () => {
    const form = document.getElementById("calc");
    if (!form) return;
    const data = JSON.parse(document.getElementById("calc-data").textContent);
    const find = (name) => form.querySelector(`.calc-${name}`);
    const field = (name) => form.elements.namedItem(name);
    const options = {
      model: data.models.map(({ name, title }) => [title, name]),
      gpu: data.accelerators.map(({ name }) => [name, name]),
      weights: Object.keys(calc.BITS).map((name) => [name, name]),
      cache: Object.keys(calc.BITS).map((name) => [name, name]),
    };
    Object.entries(options).forEach(([name, rows]) =>
      field(name).append(...rows.map(([text, value]) => new Option(text, value))));
    const defaults = { model: "llama-3-70b", weights: "bf16", cache: "bf16", gpu: "h100-sxm" };
    ["context", "batch", "gpus", "reserve"].forEach((name) => { defaults[name] = field(name).value; });
    const names = ["model", "weights", "cache", "context", "batch", "gpu", "gpus", "reserve"];
    const labels = { gpus: "how many" };
    const problem = find("problem");

    const sliders = [...form.querySelectorAll(".calc-slider")].map((slider) => {
      const places = stops(SLIDERS[slider.dataset.for]);
      slider.max = places.length - 1;
      return { slider, places, name: slider.dataset.for };
    });
    const place = ({ slider, places, name }, count) => {
      const after = places.findIndex((stop) => stop >= Number(count));
      slider.value = after === -1 ? places.length - 1 : after;
      const one = name === "batch" ? "sequence" : "token";
      slider.setAttribute("aria-valuetext", many(BigInt(count), one));
    };

    // The state of the fields; what is wrong with one of them is marked there and thrown.
    const asked = () => {
      const whole = (name) => {
        try {
          field(name).removeAttribute("aria-invalid");
          const text = field(name).value.trim();
          if (name !== "reserve") return calc.parseCount(labels[name] ?? name, text, MOST[name]);
          if (/^\d{1,2}$/.test(text)) return Number(text);
          throw new RangeError("reserve: write whole percents from 0 to 99");
        } catch (error) {
          field(name).setAttribute("aria-invalid", "true");
          throw error;
        }
      };
      const percent = whole("reserve");
      return {
        model: data.models.find(({ name }) => name === field("model").value),
        accelerator: data.accelerators.find(({ name }) => name === field("gpu").value),
        weightDtype: field("weights").value,
        cacheDtype: field("cache").value,
        context: whole("context"),
        batch: whole("batch"),
        gpus: whole("gpus"),
        numGpus: whole("gpus"),
        percent,
        reserve: percent / 100,
      };
    };

    const show = (keep) => {
      let result;
      try {
        result = computed(asked());
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        problem.textContent = error.message;
        find("results").classList.add("is-stale");
        return;
      }
      problem.textContent = "";
      find("results").classList.remove("is-stale");
      sliders.forEach((one) => place(one, result[one.name]));
      find("says").textContent = sentence(result);
      drawNode(find("node"), result);
      drawMoved(find("moved"), result);
      drawCurve(find("curve"), result);
      fillCounts(find("counts"), result);
      fillSweep(find("sweep"), result);
      fillSources(find("sources"), result);
      find("notes").replaceChildren(...notes(result).map((text) => make("li", "", text)));
      if (keep) history.replaceState(null, "", `#${address(result)}`);
    };
    const address = (result) => names.map((name) => {
      const counted = name in MOST; // as a number, however it was typed
      return `${name}=${encodeURIComponent(counted ? result[name] : field(name).value.trim())}`;
    }).join("&");

    // Settings from an address or an example; a value that a list does not have is told.
    const set = (text) => {
      const wanted = new URLSearchParams(text);
      const strange = [];
      names.forEach((name) => {
        const value = wanted.get(name) ?? defaults[name];
        const known = !options[name] || options[name].some(([, option]) => option === value);
        field(name).value = known ? value : defaults[name];
        if (!known) strange.push(`${name} '${value}' is not known here`);
      });
      return strange;
    };

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      const moved = sliders.find(({ slider }) => slider === event.target);
      if (moved) field(moved.name).value = moved.places[Number(moved.slider.value)];
      show(true);
    });
    form.querySelectorAll("[data-set]").forEach((button) => button.addEventListener("click", () => {
      set(button.dataset.set);
      show(true);
    }));
    const fromAddress = () => {
      const text = location.hash.slice(1);
      const ours = names.some((name) => new URLSearchParams(text).has(name));
      if (text && !ours) return; // an anchor of the page
      const strange = set(text);
      show(false);
      if (strange.length) problem.textContent = `${strange.join("; ")}: shown is the default.`;
    };
    addEventListener("hashchange", fromAddress);
    form.hidden = false;
    set("");
    show(false);
    fromAddress();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
