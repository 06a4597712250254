// A button at every block of code that copies it; of a session with >>> only what was typed.
document.addEventListener("DOMContentLoaded", () => {
  const typed = text => {
    const lines = text.replace(/\n$/, "").split("\n");
    if (!lines.some(line => line.startsWith(">>> "))) return lines.join("\n");
    return lines.filter(line => /^(>>>|\.\.\.)( |$)/.test(line)).map(line => line.slice(4)).join("\n");
  };
  // a page that was opened as a file may not have the clipboard; the old way works there
  const byHand = text => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const text = typed(block.querySelector("pre").textContent);
      try { await navigator.clipboard.writeText(text); } catch { byHand(text); }
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    block.append(button);
  }
});
