// Shows the passes recorded in the page, one at a time. It computes nothing: texts, positions and
// weights are in the JSON beside it, made by site/stepper_page.py.
(() => {
  const SECONDS_PER_PASS = 1.8;

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const start = () => {
    const root = document.getElementById("stepper");
    if (!root) return;
    const data = JSON.parse(document.getElementById("stepper-data").textContent);
    const find = (name) => root.querySelector(`.stepper-${name}`);
    const [slider, uncached, head, play] = ["slider", "uncached", "head", "play"].map(find);
    const state = { pass: 1, timer: null };

    // ── what is built once ────────────────────────────────────────────────────────────────────

    const slots = [...Array(data.slots).keys()];
    const drawing = find("drawing");
    drawing.style.setProperty("--slots", data.slots);
    const row = (label, className, cells) => {
      const name = make("span", `stepper-label ${className}`, label);
      drawing.append(name, ...cells);
      return { name, cells };
    };
    const cells = (className) => slots.map(() => make("span", className));
    row("slot", "stepper-muted", slots.map((n) => make("span", "stepper-number", n)));
    const memory = ["k", "v"].map((kind) =>
      row({ k: "keys", v: "values" }[kind], `stepper-${kind}`, cells("")));
    const note = (text) => drawing.append(make("span", "stepper-note", text));
    note(data.notes[0]);
    const bars = row("attention, %", "stepper-query", cells("stepper-weight"));
    bars.cells.forEach((bar) => bar.append(make("b"), make("i")));
    note(data.notes[1]);
    const matrix = slots.map((n) => row(data.tokens[n].word, "stepper-token", cells("")));

    const chips = data.tokens.map((token, n) => {
      const chip = make("li");
      chip.append(make("small", "", n), make("span", "", token.text), make("small", "", token.id));
      find("tokens").append(chip);
      return chip;
    });
    data.heads.forEach((label, n) => head.append(new Option(label, n)));

    const counters = data.passes[0].counters.flatMap(([group, rows]) => {
      const body = make("tbody");
      const title = make("th", "stepper-muted", group);
      title.colSpan = 3;
      title.scope = "rowgroup";
      body.append(make("tr"));
      body.firstChild.append(title);
      find("counts").append(body);
      return rows.map(([label]) => {
        const line = make("tr");
        const name = make("th", "", label);
        name.scope = "row";
        line.append(name, make("td"), make("td"));
        body.append(line);
        return line;
      });
    });

    // ── what changes from pass to pass ────────────────────────────────────────────────────────

    const drawMemory = (pass, plain) => {
      memory.forEach(({ cells: strip }, which) => strip.forEach((cell, n) => {
        const kind = plain
          ? (n < pass.again ? "again" : n < pass.stop ? "dropped" : "none")
          : (n < pass.first ? "kept" : n < pass.stop ? "written" : "reserved");
        cell.className = `stepper-slot stepper-${"kv"[which]} is-${kind}`;
      }));
    };

    const drawMatrix = (pass, plain) => {
      matrix.forEach(({ name, cells: line }, query) => {
        const fed = query < pass.stop && (plain || query >= pass.first);
        const kind = plain && query < pass.again ? "again" : "now";
        name.classList.toggle("is-future", query >= pass.stop);
        name.classList.toggle("is-fed", fed);
        line.forEach((cell, key) => {
          const computed = fed && key < pass.stop ? (key > query ? `${kind} is-masked` : kind) : "";
          const past = query < pass.stop && key <= query ? "past" : "blank";
          cell.className = `stepper-score is-${computed || past}`;
        });
      });
    };

    const drawWeights = (pass) => {
      const weights = pass.weights[head.value];
      bars.cells.forEach((cell, n) => {
        const weight = weights[n];
        cell.firstChild.textContent = weight >= 0.01 ? (100 * weight).toFixed(0) : "";
        cell.lastChild.style.height = weight === undefined ? "0" : `${100 * weight}%`;
        cell.classList.toggle("is-read", weight !== undefined);
      });
    };

    const drawTokens = (pass, plain) => {
      chips.forEach((chip, n) => {
        const fed = n < pass.stop && (plain || n >= pass.first);
        const kind = n > pass.stop ? "future" : n === pass.stop ? "found"
          : !fed ? "kept" : plain && n < pass.again ? "again" : "fed";
        chip.className = `is-${kind}${n < data.prompt ? " is-prompt" : ""}`;
        chip.setAttribute("aria-hidden", n > pass.stop);
      });
    };

    const drawCounts = (pass, plain) => {
      find("counts").classList.toggle("is-plain", plain);
      pass.counters.flatMap(([, rows]) => rows).forEach(([, cached, bare], n) => {
        counters[n].children[1].textContent = cached;
        counters[n].children[2].textContent = bare;
      });
    };

    const show = (keep) => {
      const pass = data.passes[state.pass - 1];
      const plain = uncached.checked;
      root.classList.toggle("is-plain", plain);
      slider.value = state.pass;
      slider.setAttribute("aria-valuetext", pass.title);
      find("title").textContent = pass.title;
      find("caption").textContent = pass.captions[plain ? 1 : 0];
      drawing.setAttribute("aria-label", `Keys, values, attention weights and scores of ${pass.title}`);
      root.querySelector("[data-do=previous]").disabled = state.pass === 1;
      root.querySelector("[data-do=next]").disabled = state.pass === data.passes.length;
      [drawMemory, drawMatrix, drawWeights, drawTokens, drawCounts].forEach((draw) => draw(pass, plain));
      if (keep) history.replaceState(null, "", `#pass=${state.pass}${plain ? "&cache=off" : ""}`);
    };

    // ── what the reader does ──────────────────────────────────────────────────────────────────

    const pause = () => {
      clearInterval(state.timer);
      state.timer = null;
      play.textContent = "Play";
      find("caption").setAttribute("aria-live", "polite");
    };
    const go = (pass) => {
      state.pass = Math.min(Math.max(pass, 1), data.passes.length);
      show(true);
    };
    const step = (by) => { pause(); go(state.pass + by); };
    const playOn = () => {
      if (state.pass === data.passes.length) go(1);
      play.textContent = "Pause";
      find("caption").setAttribute("aria-live", "off"); // every sentence at once would be noise
      state.timer = setInterval(() => {
        go(state.pass + 1);
        if (state.pass === data.passes.length) pause();
      }, 1000 * SECONDS_PER_PASS);
    };
    const actions = {
      previous: () => step(-1),
      next: () => step(1),
      play: () => (state.timer === null ? playOn() : pause()),
    };
    root.querySelectorAll("[data-do]").forEach((button) =>
      button.addEventListener("click", actions[button.dataset.do]));
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    uncached.addEventListener("change", () => show(true));
    head.addEventListener("change", () => show(false));
    addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const other = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
      // The slider, the list of heads, the search field and a wide table use the arrows themselves.
      const theirs = "input:not([type=checkbox]), select, .stepper-scroll, dialog";
      if (!by || other || event.target.closest?.(theirs)) return;
      event.preventDefault();
      step(by);
    });

    const fromAddress = () => {
      const wanted = new URLSearchParams(location.hash.slice(1));
      const pass = Number(wanted.get("pass"));
      if (wanted.has("pass")) uncached.checked = wanted.get("cache") === "off";
      if (Number.isInteger(pass) && pass >= 1 && pass <= data.passes.length) state.pass = pass;
      show(false);
    };
    addEventListener("hashchange", fromAddress);
    const all = document.querySelector(".stepper-all");
    all.open = false;
    root.hidden = false;
    fromAddress();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
