(async () => {
  for (const holder of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(document.getElementById(holder.id + "-spec").textContent);
    await vegaEmbed(holder, spec, {renderer: "svg", actions: false, tooltip: {theme: "light"}});
    await new Promise(done => setTimeout(done, 0));
  }
  document.body.dataset.drawn = "yes";
})();
