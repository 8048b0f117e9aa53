// What was chosen stands in the address, behind the figure's id: #scatter?head=3.1&scatter.1=joint. A copied address
// shows the same. `head` is that of all figures by head, `token` that of all of tokens; NUMBER of FIGURE.NUMBER counts the figure's lists from 0.
const initial = new Map([...document.querySelectorAll(".picks select")].map((select) => [select, select.value]));
const figures = [...document.querySelectorAll("figure")];
const isHeadList = (select) => select.parentElement.firstChild.textContent.trim() === "head";
let chosenHead = null, chosenToken = null, anchor = "", applying = false;

/** The option of a list of heads that is this head, or the first query head of its group; null where there is none. */
function optionOf(select, [layer, head]) {
  const names = [...select.options].map((option) => option.value);
  const own = `layer ${layer}, head ${head}`;
  if (names.includes(own)) return own;
  const queries = names.filter((name) => name.startsWith(`layer ${layer}, query head `));
  const heads = Number(document.body.dataset.heads);
  return queries.length > 0 && head < heads ? queries[head * queries.length / heads] : null;
}
const expected = (select) => (chosenHead && isHeadList(select) && optionOf(select, chosenHead)) || initial.get(select);

function choose(select, value) {
  if (select.value === value || ![...select.options].some((option) => option.value === value)) return;
  select.value = value;
  select.dispatchEvent(new Event("change"));
}

const cellPlace = (cell) => {
  const place = /^layer (\d+), KV head (\d+):/.exec(cell.dataset.tip);
  return place && [Number(place[1]), Number(place[2])];
};
const sameHead = (a, b) => a !== null && b !== null && a[0] === b[0] && a[1] === b[1];

const byHead = [...document.querySelectorAll("[data-cell]")].filter(cellPlace);
const isThere = (head) => byHead.some((cell) => sameHead(cellPlace(cell), head)) ||
  [...initial.keys()].some((select) => isHeadList(select) && optionOf(select, head));

/** Every figure by head shows this one; null, or a head that none has: what each shows unasked. */
function chooseHead(head) {
  const before = applying;
  applying = true;
  chosenHead = head && isThere(head) ? head : null;
  for (const select of initial.keys()) if (isHeadList(select)) choose(select, expected(select));
  for (const cell of byHead) cell.classList.toggle("chosen", sameHead(cellPlace(cell), chosenHead));
  applying = before;
}

/** Every figure of tokens marks this one; null, or one that there is not: none. Once more by hand: none, too. */
function chooseToken(token, byHand) {
  const isNone = token === null || token >= Number(document.body.dataset.tokens) || (byHand && token === chosenToken);
  chosenToken = isNone ? null : token;
  document.dispatchEvent(new CustomEvent("token", { detail: chosenToken }));
  if (byHand) remember();
}

/** Lists after a list that changed may have other options: in their order. */
function restore(chosen) {
  applying = true;
  for (const figure of figures)
    picked(figure).forEach((select, i) => choose(select, chosen.get(`${figure.id}.${i}`) ?? expected(select)));
  applying = false;
}

function remember() {
  if (applying) return;
  const chosen = new URLSearchParams();
  if (chosenHead) chosen.set("head", chosenHead.join("."));
  if (chosenToken !== null) chosen.set("token", chosenToken);
  for (const figure of figures)
    picked(figure).forEach((select, i) => { if (select.value !== expected(select)) chosen.set(`${figure.id}.${i}`, select.value); });
  const state = chosen.toString();
  history.replaceState(null, "", state || anchor ? `#${anchor}${state ? `?${state}` : ""}` : location.pathname + location.search);
}

/** From the address: its state where it has one, else as it is; and to the figure. */
function follow() {
  const [id, state] = location.hash.slice(1).split("?");
  anchor = id;
  if (state !== undefined) {
    const chosen = new Map(new URLSearchParams(state)), head = /^(\d+)\.(\d+)$/.exec(chosen.get("head") ?? "");
    chooseHead(head && [Number(head[1]), Number(head[2])]);
    restore(chosen);
    chooseToken(/^\d+$/.test(chosen.get("token") ?? "") ? Number(chosen.get("token")) : null, false);
    document.getElementById(id)?.scrollIntoView({ behavior: "instant" });
  }
  remember();
}

for (const select of initial.keys())
  select.addEventListener("change", () => {
    const head = isHeadList(select) && /^layer (\d+), head (\d+)$/.exec(select.value);
    if (head && !applying) chooseHead([Number(head[1]), Number(head[2])]);
    remember();
  });
document.addEventListener("click", (event) => {
  const cell = event.target.closest("[data-cell]"), head = cell && cellPlace(cell);
  if (head) chooseHead(sameHead(head, chosenHead) ? null : head);
  // A finding's link goes on to its figure by itself.
  const link = event.target.closest("a[data-head]");
  if (link) {
    chooseHead(link.dataset.head.split(".").map(Number));
    if (link.dataset.token !== undefined) chooseToken(Number(link.dataset.token), false);
    for (const [name, value] of Object.entries(JSON.parse(link.dataset.picked)))
      for (const select of picked(document.getElementById(link.hash.slice(1))))
        if (select.parentElement.firstChild.textContent.trim() === name) choose(select, value);
  }
  if (head || link) remember();
});
for (const cell of byHead) cell.classList.add("by-head");
window.addEventListener("hashchange", follow);
follow();

// The same place in the dashboard, as the command that opens it; where the page lies among files.
if (location.protocol.startsWith("file") && document.body.dataset.results !== undefined) {
  const folder = decodeURIComponent(new URL(`${document.body.dataset.results}/`, location.href).pathname).replace(/(.)\/$/, "$1");
  const encoded = (text) => encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`).replaceAll("%2F", "/");
  for (const button of document.querySelectorAll("button[data-panel]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const figure = button.closest("figure"), place = { run: folder, panel: button.dataset.panel };
      const own = picked(figure).filter(isHeadList).map((select) => /^layer (\d+), (query )?head (\d+)$/.exec(select.value)).find((m) => m && !m[2]);
      const head = own ? [own[1], own[3]] : chosenHead;
      if (head) [place.layer, place.head] = head;
      if (chosenToken !== null && ["text", "scatter"].includes(button.dataset.panel)) place.token = chosenToken;
      const value = (name) => picked(figure).find((select) => select.parentElement.firstChild.textContent.trim() === name)?.value;
      if (button.dataset.panel === "scatter") [place.score, place.reference] = [value("score"), value("exact error")];
      const link = `kvreplay://open?${Object.entries(place).map(([key, text]) => `${key}=${encoded(text)}`).join("&")}`;
      const shownCommand = figure.querySelector(".command");
      shownCommand.textContent = `kvreplay view '${link}'`;
      shownCommand.hidden = false;
      navigator.clipboard?.writeText(shownCommand.textContent).then(() => { button.textContent = "Copied the command"; }, () => {});
    });
  }
}
