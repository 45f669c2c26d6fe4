// What refimpl computes about sizes, fits and decode steps, for the browser. Pure: it reads its
// arguments and returns numbers, knows no page, no clock and no chance.
//
// Whole numbers are BigInt, since the FLOPs of a batch pass 2^53; seconds, rates and shares are
// Numbers. Names are those of refimpl (sizing, roofline, capacity) in camel case. A model is what
// site/calculator.py writes of an Architecture: its layers in groups of equal ones, each with a
// count, fields that are zero left out; calc.model() makes it ready for everything else.
"use strict";

const calc = (() => {
  const BITS = { fp32: 32n, bf16: 16n, fp16: 16n, fp8: 8n, int8: 8n, int4: 4n };
  const ATTENTION = ["full", "sliding", "chunked", "latent"];

  const min = (a, b) => (a < b ? a : b);
  const max = (a, b) => (a > b ? a : b);
  const sum = (items, term) => items.reduce((total, item) => total + term(item), 0n);
  const ceilDivide = (a, b) => (a + b - 1n) / b; // of a >= 0 and b > 0

  // A whole number of at least `least` as BigInt; a Number past 2^53 has lost digits already.
  const whole = (name, value, least = 0n) => {
    if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
      throw new RangeError(`${name} must be an integer, got ${value}`);
    }
    if (value < least) throw new RangeError(`${name} must be at least ${least}, got ${value}`);
    return BigInt(value);
  };

  const bits = (dtype) => {
    if (!Object.hasOwn(BITS, dtype)) {
      throw new RangeError(`unknown dtype '${dtype}': one of ${Object.keys(BITS).join(", ")}`);
    }
    return BITS[dtype];
  };

  // Bytes of numbers that lie side by side; two 4-bit ones share a byte.
  const packed = (elements, dtype) => ceilDivide(elements * bits(dtype), 8n);

  // ── facts ───────────────────────────────────────────────────────────────────────────────────

  const LAYER = ["count", "num_query_heads", "num_kv_heads", "head_dim", "value_dim", "window",
    "latent_width", "rope_width", "state_elements", "mixer_parameters", "mlp_parameters",
    "num_experts", "experts_per_token", "expert_parameters"];
  const MODEL = ["model_width", "mlp_width", "vocab_size", "embedding_parameters",
    "head_parameters", "other_parameters"];

  const integers = (names, facts) =>
    Object.fromEntries(names.map((name) => [name, whole(name, facts[name] ?? 0)]));

  const layerGroup = (facts) => {
    const layer = { kind: facts.kind, ...integers(LAYER, facts) };
    const attends = ATTENTION.includes(layer.kind);
    layer.alwaysRead = layer.mixer_parameters + layer.mlp_parameters;
    // What a token adds to the cache, as pairs: how many vectors, how wide.
    layer.vectors = !attends ? []
      : layer.kind === "latent" ? [[1n, layer.latent_width], [1n, layer.rope_width]]
        : [[layer.num_kv_heads, layer.head_dim], [layer.num_kv_heads, layer.value_dim]];
    // FLOPs of a query token and a key token in all heads; a latent is read absorbed.
    const [key, value] = layer.kind === "latent"
      ? [layer.latent_width + layer.rope_width, layer.latent_width]
      : [layer.head_dim, layer.value_dim];
    layer.pairFlops = attends ? 2n * layer.num_query_heads * (key + value) : 0n;
    return layer;
  };

  const model = (facts) => ({
    name: facts.name,
    tied: facts.tie_embeddings,
    uniform: facts.uniform,
    ...integers(MODEL, facts),
    layers: facts.layers.map(layerGroup),
  });

  // ── sizing ──────────────────────────────────────────────────────────────────────────────────

  const layerTokenBytes = (layer, dtype) =>
    sum(layer.vectors, ([number, width]) => number * packed(width, dtype));

  const kvBytesPerToken = (arch, dtype, beyondWindow = false) =>
    sum(arch.layers, (layer) =>
      beyondWindow && layer.window ? 0n : layer.count * layerTokenBytes(layer, dtype));

  const fixedStateBytes = (arch, dtype) =>
    sum(arch.layers, (layer) => layer.count * packed(layer.state_elements, dtype));

  // A window holds its last tokens; of a chunk a whole one is reserved, so it counts the same.
  const kvBytes = (arch, numTokens, dtype, batch = 1n) => {
    const tokens = whole("num_tokens", numTokens);
    const held = (layer) => (layer.window ? min(tokens, layer.window) : tokens);
    const kept = sum(arch.layers, (layer) =>
      layer.count * held(layer) * layerTokenBytes(layer, dtype));
    return whole("batch", batch) * (kept + (tokens ? fixedStateBytes(arch, dtype) : 0n));
  };

  const countParameters = (arch) => {
    const outside = arch.embedding_parameters + arch.head_parameters + arch.other_parameters;
    const inside = (experts) => sum(arch.layers, (layer) =>
      layer.count * (layer.alwaysRead + layer[experts] * layer.expert_parameters));
    return {
      total: outside + inside("num_experts"),
      active: outside + inside("experts_per_token"),
      embedding: arch.embedding_parameters,
    };
  };

  const weightBytes = (arch, dtype) => packed(countParameters(arch).total, dtype);

  // The longest sequence of which `batch` fit, null if none is too long. No division: the cache
  // grows by less once windows are full.
  const maxTokens = (arch, numBytes, dtype, batch = 1n) => {
    const room = whole("num_bytes", numBytes);
    const rows = whole("batch", batch, 1n);
    const fits = (tokens) => kvBytes(arch, tokens, dtype, rows) <= room;
    const full = arch.layers.reduce((widest, layer) => max(widest, layer.window), 1n);
    if (fits(full) && kvBytesPerToken(arch, dtype, true) === 0n) return null;
    let high = 1n;
    while (fits(high)) high *= 2n;
    let low = high / 2n;
    while (high - low > 1n) {
      const middle = (low + high) / 2n;
      if (fits(middle)) low = middle; else high = middle;
    }
    return low;
  };

  // How many experts so many tokens read together, expected: E · (1 − (1 − k/E)^B).
  const distinctExperts = (numExperts, perToken, tokens) => {
    const [experts, chosen, drawn] = [numExperts, perToken, tokens].map(Number);
    return experts * (1 - (1 - chosen / experts) ** drawn);
  };

  // ── roofline: one decode step, a new token for each sequence ────────────────────────────────

  // Stored tokens that the new one reads, itself not among them.
  const readable = (layer, stored) =>
    layer.kind === "sliding" ? min(stored, layer.window - 1n)
      : layer.kind === "chunked" ? stored % layer.window : stored;

  const cacheTraffic = (arch, stored, dtype) => sum(arch.layers, (layer) => {
    const tokens = layerTokenBytes(layer, dtype) * (readable(layer, stored) + 1n);
    const state = packed(layer.state_elements, dtype) * (stored ? 2n : 1n); // read and written
    return layer.count * (tokens + state);
  });

  const roundHalfEven = (value) => {
    const below = Math.floor(value);
    const rest = value - below;
    return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
  };

  const weightsRead = (arch, batch, dtype) => {
    const rows = min(arch.embedding_parameters, batch * arch.model_width);
    const table = arch.tied ? arch.embedding_parameters : rows;
    const always = arch.other_parameters + table + arch.head_parameters
      + sum(arch.layers, (layer) => layer.count * layer.alwaysRead);
    let experts = 0; // an expected number, so not a whole one
    for (const layer of arch.layers) {
      if (!layer.num_experts) continue;
      const read = Number(layer.expert_parameters)
        * distinctExperts(layer.num_experts, layer.experts_per_token, batch);
      for (let n = 0n; n < layer.count; n += 1n) experts += read;
    }
    return packed(always, dtype) + BigInt(roundHalfEven(experts * (Number(bits(dtype)) / 8)));
  };

  // FLOPs of a token in all matrices. Uniform decoders are counted matrix by matrix; elsewhere
  // every weight of a layer counts for two.
  const linearFlops = (arch) => {
    const head = arch.head_parameters + (arch.tied ? arch.embedding_parameters : 0n);
    const body = (layer) => (arch.uniform
      ? 2n * arch.model_width * layer.head_dim * (layer.num_query_heads + layer.num_kv_heads)
        + 3n * arch.model_width * arch.mlp_width
      : layer.alwaysRead + layer.experts_per_token * layer.expert_parameters);
    const outside = arch.uniform ? 0n : arch.other_parameters;
    return 2n * (sum(arch.layers, (layer) => layer.count * body(layer)) + outside + head);
  };

  const attentionFlops = (arch, stored) => sum(arch.layers, (layer) => {
    const pairs = layer.pairFlops ? readable(layer, stored) + 1n : 0n;
    return layer.count * (4n * layer.state_elements + pairs * layer.pairFlops);
  });

  // Each mixer and each MLP reads its input and writes its output once; logits are written.
  const activations = (arch) => {
    const blocks = (layer) => (layer.kind === "none" ? 0n : 1n)
      + (layer.mlp_parameters || layer.num_experts ? 1n : 0n);
    const passed = 2n * arch.model_width * sum(arch.layers, (layer) => layer.count * blocks(layer));
    return passed + arch.vocab_size;
  };

  const peak = (accelerator, dtype) => {
    const rates = accelerator.peak_flops;
    if (!Object.hasOwn(rates, dtype)) {
      const known = Object.keys(rates).join(", ");
      throw new RangeError(`${accelerator.name} has no rate for '${dtype}': it has ${known}`);
    }
    return rates[dtype];
  };

  // The precision of the arithmetic: that of the weights; 8 bits or fewer are unpacked first, to
  // bf16 or, where the accelerator lacks that, to fp16.
  const computeDtype = (accelerator, weightDtype) => {
    if (bits(weightDtype) >= 16n) return weightDtype;
    return Object.hasOwn(accelerator.peak_flops, "bf16") ? "bf16" : "fp16";
  };

  // Options: batch, context, numGpus, weightDtype, cacheDtype. A lower bound on time: stated
  // bandwidth and rate, perfect overlap, devices that share evenly and talk for free.
  const decodeStep = (arch, accelerator, options) => {
    const batch = whole("batch", options.batch, 1n);
    const stored = whole("context", options.context, 1n) - 1n;
    const gpus = Number(whole("num_gpus", options.numGpus ?? 1n, 1n));
    const dtype = computeDtype(accelerator, options.weightDtype);
    const parts = {
      weightBytes: weightsRead(arch, batch, options.weightDtype),
      cacheBytes: batch * cacheTraffic(arch, stored, options.cacheDtype),
      activationBytes: packed(batch * activations(arch), dtype),
    };
    const bytes = parts.weightBytes + parts.cacheBytes + parts.activationBytes;
    const flops = batch * (linearFlops(arch) + attentionFlops(arch, stored));
    const memorySeconds = Number(bytes) / (accelerator.bandwidth * gpus);
    const computeSeconds = Number(flops) / (peak(accelerator, dtype) * gpus);
    const seconds = Math.max(memorySeconds, computeSeconds);
    return {
      ...parts,
      bytes,
      flops,
      memorySeconds,
      computeSeconds,
      seconds,
      bound: memorySeconds >= computeSeconds ? "memory" : "compute",
      intensity: Number(flops) / Number(bytes),
      ridge: peak(accelerator, dtype) / accelerator.bandwidth,
      tokensPerSecond: Number(batch) / seconds,
      computeDtype: dtype,
    };
  };

  // Tokens a second that no batch exceeds, by what would hold it back: weights are shared, but
  // arithmetic, cache and activations come anew with each sequence.
  const rateCeilings = (arch, accelerator, options) => {
    const alone = decodeStep(arch, accelerator, { ...options, batch: 1n });
    const own = Number(alone.cacheBytes + alone.activationBytes);
    const gpus = Number(whole("num_gpus", options.numGpus ?? 1n, 1n));
    return { memory: (accelerator.bandwidth * gpus) / own, compute: 1 / alone.computeSeconds };
  };

  // ── capacity ────────────────────────────────────────────────────────────────────────────────

  // A share as it is written, numerator and denominator: 0.1 is a tenth, not the float next to it.
  const fraction = (share) => {
    const match = /^(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/.exec(String(share));
    if (match === null || !(share >= 0 && share < 1)) {
      throw new RangeError(`reserve must be a share from 0 to below 1, got ${share}`);
    }
    const digits = match[2] ?? "";
    const power = Number(match[3] ?? 0) - digits.length;
    const scale = 10n ** BigInt(Math.abs(power));
    const number = BigInt(match[1] + digits);
    return power < 0 ? [number, scale] : [number * scale, 1n];
  };

  // Options: numGpus, context, users (or null), reserve, weightDtype, cacheDtype.
  const plan = (arch, accelerator, options) => {
    const gpus = whole("num_gpus", options.numGpus ?? 1n, 1n);
    const context = whole("context", options.context, 1n);
    const users = options.users == null ? null : whole("users", options.users, 1n);
    const [reserved, denominator] = fraction(options.reserve ?? 0.1);
    const each = whole("memory_bytes", accelerator.memory_bytes) * (denominator - reserved);
    const memory = gpus * BigInt(accelerator.memory_bytes);
    const usable = (gpus * each) / denominator;
    const weights = weightBytes(arch, options.weightDtype);
    const perUser = kvBytes(arch, context, options.cacheDtype);
    if (!perUser) {
      throw new RangeError(`${arch.name} keeps nothing of a sequence: users take no memory`);
    }
    const room = usable - weights;
    const pool = max(0n, room);
    const enough = users !== null && room >= users * perUser;
    return {
      memoryBytes: memory,
      reservedBytes: memory - usable,
      weightBytes: weights,
      poolBytes: pool,
      bytesPerUser: perUser,
      users: Number(pool) / Number(perUser),
      wholeUsers: pool / perUser,
      tokens: (pool * context) / perUser,
      gpusNeeded: users === null ? null
        : ceilDivide((weights + users * perUser) * denominator, each),
      limit: room < 0n ? "weights" : enough ? "none" : "cache",
    };
  };

  // The node from one end to the other, and what does not fit on it: what a bar shows.
  const occupancy = (fit, batch) => {
    const cache = whole("batch", batch) * fit.bytesPerUser;
    const usable = fit.memoryBytes - fit.reservedBytes;
    const weights = min(fit.weightBytes, usable);
    const held = min(cache, usable - weights);
    return {
      weights,
      cache: held,
      free: usable - weights - held,
      reserve: fit.reservedBytes,
      over: fit.weightBytes - weights + (cache - held),
    };
  };

  // ── text: as refimpl.units writes it ────────────────────────────────────────────────────────

  // Like toFixed, but a tie goes to the even digit, as in Python.
  const fixed = (value, digits) => {
    const doubled = value * 2 * 10 ** digits;
    const isTie = Number.isInteger(value * 2 ** (digits + 1)) && doubled % 2 === 1;
    if (!isTie) return value.toFixed(digits);
    const below = (doubled - 1) / 2;
    return ((below % 2 === 0 ? below : below + 1) / 10 ** digits).toFixed(digits);
  };
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const grouped = (number) => {
    const [integer, ...decimals] = String(number).split(".");
    return [integer.replace(/\B(?=(\d{3})+$)/g, ","), ...decimals].join(".");
  };

  const scaled = (numBytes, base, units) => {
    let [value, power] = [Number(numBytes), 0];
    while (power + 1 < units.length && Number(fixed(value, 2)) >= base) {
      value /= base;
      power += 1;
    }
    return `${trimmed(fixed(value, 2))} ${units[power]}`;
  };
  const formatBytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const formatSiBytes = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]);

  const formatCount = (number) => {
    const count = BigInt(number);
    for (const [power, word] of [[12n, "trillion"], [9n, "billion"], [6n, "million"]]) {
      if (count * 10n ** 5n < 99_995n * 10n ** power) continue;
      const value = Number(count) / Number(10n ** power);
      if (value >= 999.95) return `${grouped(fixed(value, 0))} ${word}`;
      return `${trimmed(fixed(value, 3 - Math.floor(Math.log10(value))))} ${word}`;
    }
    return grouped(count);
  };

  // A count as people type it: 4096, 131,072, 128k (a bare letter is binary, as in refimpl).
  const parseCount = (name, text, most) => {
    const match = /^(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*([kmg]?)$/i.exec(text.trim());
    const power = match ? ["", "k", "m", "g"].indexOf(match[2].toLowerCase()) : 0;
    const value = match ? Number(match[1].replaceAll(",", "")) * 1024 ** power : NaN;
    if (!Number.isSafeInteger(value) || value < 1 || value > most) {
      const rule = `write a whole number from 1 to ${grouped(most)}, as in 4096 or 128k`;
      throw new RangeError(`${name}: ${rule}, not '${text}'`);
    }
    return BigInt(value);
  };

  return {
    BITS, model, kvBytesPerToken, fixedStateBytes, kvBytes, countParameters, weightBytes,
    maxTokens, distinctExperts, computeDtype, decodeStep, rateCeilings, plan, occupancy,
    fixed, grouped, formatBytes, formatSiBytes, formatCount, parseCount,
  };
})();
