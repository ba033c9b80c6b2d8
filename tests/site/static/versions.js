// Lets a reader choose another version of the site, by tests/site/versions.py. A site that stands
// alone has no other version, and shows nothing.
(async () => {
  const box = document.querySelector(".versions")
  const root = new URL(document.documentElement.dataset.content_root, location.href)
  const reply = await fetch(new URL("../versions.json", root)).catch(() => null)
  if (!box || !reply?.ok) return
  const here = root.pathname.split("/").at(-2)
  const select = box.querySelector("select")
  for (const version of await reply.json()) {
    select.add(new Option(version, version, false, version === here))
  }
  box.hidden = false
  select.addEventListener("change", async () => {
    const start = new URL(`../${select.value}/`, root)
    const page = new URL(location.href.slice(root.href.length), start)
    const found = await fetch(page, { method: "HEAD" }).then((each) => each.ok, () => false)
    location.assign(found ? page : start)
  })
})()
