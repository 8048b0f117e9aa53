// The text of the prompt: in a head, a layer or all, tinted by a metric, struck through where a policy evicts. What
// follows the choice is the class of each token's span.
const digitValue = new Map([..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].map((digit, i) => [digit, i]));

for (const host of document.querySelectorAll("[data-kind=text]")) {
  const figure = host.closest("figure"), data = JSON.parse(figure.querySelector("script").textContent);
  const spans = [...host.querySelectorAll("span")], said = figure.querySelector(".said"), lists = picked(figure);
  const list = (label) => lists.find((select) => select.parentElement.firstChild.textContent.trim() === label);
  const tokens = data.passages.flatMap(([from, to]) => Array.from({ length: to - from }, (_, i) => from + i));
  const numberOf = new Map(tokens.map((token, i) => [token, i]));
  spans.forEach((span, i) => { span.number = i; });

  const metricOf = () => data.metrics[list("tinted by").selectedIndex];
  const scopeOf = () => list("head").selectedIndex;
  const policyOf = (side) => data.policies.find((policy) => policy.option === list(`${side}, evicted by`)?.value);
  const side = () => list("struck through")?.value ?? "A";
  /** Of how many heads, and how many of them keep each token; those of all heads where the page has no others. */
  const keptOf = (policy) => {
    const [from, to] = data.scopes[scopeOf()];
    if (scopeOf() === 0 || policy.heads.length === 0) {
      policy.counts ??= new Uint16Array(bytesOf(policy.kept).buffer);
      return { heads: data.heads, kept: policy.counts, whole: true };
    }
    if (policy.scope === scopeOf()) return { heads: to - from, kept: policy.inScope, whole: false };
    const kept = new Uint16Array(spans.length);
    for (let head = from; head < to; ++head) {
      const bits = policy.heads[head];
      for (let i = 0; i < kept.length; ++i) kept[i] += digitValue.get(bits[Math.floor(i / 6)]) >> (i % 6) & 1;
    }
    policy.scope = scopeOf();
    policy.inScope = kept;
    return { heads: to - from, kept, whole: false };
  };
  const levelsOf = (metric) => metric.levels[scopeOf()] ?? metric.levels[0];
  const isWhole = (metric) => scopeOf() === 0 || metric.levels.length === 1;

  const draw = () => {
    const metric = metricOf(), policy = policyOf(side());
    const levels = metric && levelsOf(metric), evictions = policy && keptOf(policy);
    spans.forEach((span, i) => {
      const tint = levels ? Math.max(Math.floor((digitValue.get(levels[i]) - 1) / 8), 0) : 0;
      const strike = evictions ? Math.ceil(4 * (evictions.heads - evictions.kept[i]) / evictions.heads) : 0;
      const names = [tint && `t${tint}`, strike && `e${strike}`, i === marked && "it"].filter(Boolean).join(" ");
      if (span.className !== names) span.className = names;
    });
  };

  /** A place among all tokens: one where the page has all values, else the places that look alike in it. */
  const placeText = (metric, i) => {
    const of = ` of ${data.tokens}`;
    if (isWhole(metric) && tokens.length === data.tokens) {
      metric.floats ??= floats(metric.values);
      const own = metric.floats[i];
      const before = metric.floats.reduce((n, value, j) => n + (value > own || (value === own && j < i) ? 1 : 0), 0);
      return Number.isNaN(own) ? "no value" : `rank ${before + 1}${of}`;
    }
    const level = digitValue.get(levelsOf(metric)[i]), [first, last] = data.ranks[level];
    return level === 0 ? "no value" : first === last ? `rank ${first}${of}` : `rank ${first} to ${last}${of}`;
  };
  const lines = (i) => {
    const metric = metricOf(), all = " over all heads", texts = [`token ${tokens[i]} '${spans[i].textContent}'`];
    if (metric) {
      const whole = isWhole(metric);
      metric.floats ??= floats(metric.values);
      texts.push(`${metric.name}${whole ? all : ""}: ${whole && !Number.isNaN(metric.floats[i]) ? `${shown(metric.floats[i])}, ` : ""}${placeText(metric, i)}`);
    }
    for (const one of ["A", "B"]) {
      const policy = policyOf(one);
      if (!policy || (one === "B" && policy === policyOf("A"))) continue;
      const { heads, kept, whole } = keptOf(policy);
      texts.push(heads === 1 ? `${kept[i] ? "kept" : "evicted"} by ${policy.name}`
        : `${policy.name} keeps it in ${kept[i]} of ${heads} heads${whole && scopeOf() > 0 ? all : ""}`);
    }
    return texts;
  };

  let marked = null;
  const tell = () => {
    said.hidden = marked === null;
    if (marked !== null) said.textContent = lines(marked).join("; ");
  };
  lists.forEach((select) => select.addEventListener("change", () => { draw(); tell(); }));
  document.addEventListener("token", (event) => {
    spans[marked]?.classList.remove("it");
    marked = numberOf.get(event.detail) ?? null;
    tell();
    if (marked === null) return;
    const span = spans[marked];
    span.classList.add("it");
    if (span.offsetTop < host.scrollTop || span.offsetTop > host.scrollTop + host.clientHeight - 30)
      host.scrollTop = span.offsetTop - host.clientHeight / 2;
  });

  host.addEventListener("pointermove", (event) => {
    if (event.target.number === undefined) hideTip();
    else showTip(event, lines(event.target.number).join("\n"));
  });
  host.addEventListener("pointerleave", hideTip);
  host.addEventListener("scroll", hideTip);
  host.addEventListener("click", (event) => {
    if (event.target.number !== undefined) chooseToken(tokens[event.target.number], true);
  });

  // One click goes from A to B and back.
  const sides = list("struck through");
  if (sides) {
    const button = document.createElement("button");
    button.type = "button";
    const name = () => { button.textContent = `${sides.value} is shown, go to ${sides.value === "A" ? "B" : "A"}`; };
    button.addEventListener("click", () => choose(sides, sides.value === "A" ? "B" : "A"));
    sides.addEventListener("change", name);
    sides.parentElement.hidden = true;
    sides.parentElement.after(button);
    name();
  }
}
