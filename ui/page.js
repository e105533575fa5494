// Files without the server's disk, Esc as Stop, tips, and an end to frames that nobody sees.
() => {
  window.rlDownload = (text, name) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  window.rlPick = () =>
    new Promise((resolve) => {
      const input = document.createElement("input");
      input.type = "file";
      input.accept = ".json,.md,.markdown,.txt";
      input.id = "rl-picker";
      input.style.display = "none";
      const done = (text) => { input.remove(); resolve(text); };
      input.addEventListener("cancel", () => done(""));
      input.addEventListener("change", async () => {
        const file = input.files[0];
        // The server refuses what is larger anyway.
        done(!file ? "" : file.size > 8e6 ? "too large".repeat(1e6) : await file.text());
      });
      document.body.appendChild(input);
      input.click();
    });
  // The answer that is being written, as plain text under what the conversation shows already.
  const live = { name: "", from: 0, text: "", node: null };
  const draw = () => {
    const list = document.querySelector("#rl-chat .message-wrap");
    const tail = live.name ? live.text.slice(live.from).replace(/^\s+/, "") : "";
    list?.classList.toggle("rl-growing", live.name !== "");
    if (!tail || !list) return live.node?.remove();
    const view = list.closest(".bubble-wrap") ?? list;
    const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 120;
    live.node ??= Object.assign(document.createElement("div"), { className: "bot message rl-tail", dir: "auto" });
    const shown = live.node.textContent;
    if (shown && tail.startsWith(shown)) live.node.firstChild.appendData(tail.slice(shown.length));
    else live.node.textContent = tail;
    if (live.node.parentNode !== list) list.append(live.node);
    if (isAtEnd) view.scrollTop = view.scrollHeight;
  };
  const take = ({ text, figures }) => {
    live.text += text;
    document.querySelectorAll("#rl-panel .rl-figures b").forEach((cell, n) => { cell.textContent = figures[n]; });
  };
  const follow = async (name) => {
    const response = await fetch(`${location.pathname.replace(/\/$/, "")}/live/${name}`);
    if (!response.ok) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; name === live.name; ) {
      const { done, value } = await reader.read();
      if (done || name !== live.name) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.map(JSON.parse).forEach(take);
      draw();
    }
    reader.cancel();
  };
  new MutationObserver(() => {
    const now = document.querySelector("#rl-live [data-answer]")?.dataset;
    const name = now?.answer ?? "";
    live.from = Number(now?.from ?? 0);
    if (name !== live.name) {
      Object.assign(live, { name, text: "" });
      // A page that cannot follow is sent the whole text instead.
      if (name) follow(name).catch(() => {});
    }
    draw();
  }).observe(document.getElementById("rl-live"), { childList: true, subtree: true, attributes: true });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const id of ["rl-stop", "rl-race-stop", "rl-bench-stop"]) {
      const button = document.getElementById(id);
      if (button && button.offsetParent !== null) button.click();
    }
  });

  const TIPS = __TIPS__;
  let tip = null;
  let timer = 0;
  let used = null;
  const hide = () => { clearTimeout(timer); if (tip) { tip.remove(); tip = null; } };
  const show = (owner) => {
    const text = TIPS[owner.id];
    hide();
    tip = document.createElement("div");
    tip.className = "rl-tip";
    tip.setAttribute("role", "tooltip");
    tip.textContent = text;
    document.body.appendChild(tip);
    const box = owner.getBoundingClientRect();
    const fits = box.right + tip.offsetWidth + 12 < window.innerWidth;
    const left = fits ? box.right + 8 : Math.max(8, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8));
    const top = fits ? box.top : box.bottom + 6;
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(8, Math.min(top, window.innerHeight - tip.offsetHeight - 8))}px`;
  };
  const owner = (event) => event.target.closest?.("[id^='rl-']");
  const find = (event) => {
    let element = owner(event);
    while (element && !TIPS[element.id]) element = element.parentElement?.closest("[id^='rl-']");
    return element;
  };
  for (const kind of ["mouseover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const element = find(event);
      hide();
      if (element !== used) used = null;
      // Whoever already uses a control does not want it covered.
      if (element && !used) timer = setTimeout(() => show(element), 450);
    });
  }
  document.addEventListener("mouseleave", hide);
  document.addEventListener("focusout", hide);
  for (const kind of ["mousedown", "keydown"]) {
    document.addEventListener(kind, (event) => { used = find(event); hide(); });
  }
  // Screen readers hear the tip with the control.
  const describe = () => {
    for (const [id, text] of Object.entries(TIPS)) {
      const element = document.getElementById(id);
      const control = element?.matches("button") ? element : element?.querySelector("input, textarea, button");
      if (control && control.getAttribute("aria-description") !== text) control.setAttribute("aria-description", text);
    }
  };
  describe();
  setTimeout(describe, 1500);

  // Gradio's loading sign goes on counting after it is gone, and would have a frame drawn sixty
  // times a second for ever: a tenth of a core. A clock that misses one frame stands still.
  const calm = (triesLeft) => {
    const isMoving = document.getAnimations().some((animation) => animation.playState === "running");
    if (isMoving && triesLeft) return setTimeout(calm, 500, triesLeft - 1);
    const next = requestAnimationFrame(() => {});
    for (let frame = Math.max(0, next - 32); frame <= next; frame++) cancelAnimationFrame(frame);
    window.rlCalm = true;
  };
  setTimeout(calm, 1000, 20);
}
