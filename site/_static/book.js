// A link to an anchor inside a fold opens the fold; printing opens all of them.
(() => {
  const open = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      fold.open = true;
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  addEventListener("DOMContentLoaded", open);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("article details").forEach((fold) => { fold.open = true; });
  });
})();
