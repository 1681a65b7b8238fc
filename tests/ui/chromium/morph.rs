//! The function that changes an open page into another version of itself, on random pairs of pages.

use serde_json::{Value, json};

use super::{STARTED, Tab, with_browser};
use crate::api::fixture::fleet;

/// Modules with the function, and what it imports.
const MODULES: [&str; 2] = [
    include_str!("../../../crates/ui/src/assets/app/page.js"),
    include_str!("../../../crates/ui/src/assets/app/morph.js"),
];

/// Generator of random pages, the same in each run.
const RANDOM: &str = r##"
  let seed = 20_260_101;
  const random = (most) => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((seed / 2 ** 32) * most);
  };
  const pick = (list) => list[random(list.length)];
  const shuffled = (list) => list.map((it) => [random(1e9), it]).sort((a, b) => a[0] - b[0]).map(([, it]) => it);
"##;

/// 1,000 random pairs: the page becomes the wanted one, and elements with an id that stay below their parent stay the same.
const PAIRS: &str = r##"
  const TAGS = ["p", "div", "span", "ul", "details", "table-like", "a"];
  const fill = (parent, ids, depth) => {
    for (let n = random(5); n > 0; n -= 1) {
      if (random(4) === 0 && parent.lastChild?.nodeType !== 3) {
        parent.append(`text ${random(9)}`);
        continue;
      }
      const child = document.createElement(pick(TAGS));
      if (ids.length > 0 && random(2)) child.id = ids.pop();
      if (random(3) === 0) child.className = pick(["good", "bad", "quiet"]);
      if (random(5) === 0) child.setAttribute("title", `title ${random(5)}`);
      parent.append(child);
      if (depth > 0) fill(child, ids, depth - 1);
    }
  };
  const page = () => {
    const top = document.createElement("section");
    fill(top, shuffled([...Array(40).keys()].map((n) => `m-${n}`)), 4);
    return top;
  };
  /** Moves, adds and removes some children. */
  const variant = (of) => {
    const copy = of.cloneNode(true);
    for (const element of [copy, ...copy.querySelectorAll("*")]) {
      if (random(3) === 0) {
        const children = shuffled([...element.childNodes]).filter(() => random(5));
        const apart = children.filter((it, at) => it.nodeType !== 3 || children[at - 1]?.nodeType !== 3);
        element.replaceChildren(...apart);
      }
      if (random(6) === 0) element.setAttribute("title", `other ${random(5)}`);
      if (random(8) === 0) element.removeAttribute("class");
      if (random(8) === 0 && element.lastChild?.nodeType !== 3) element.append(`more ${random(9)}`);
    }
    return copy;
  };
  const wrong = [];
  for (let pair = 0; pair < 1_000; pair += 1) {
    const live = page();
    const wanted = random(4) === 0 ? page() : variant(live);
    document.querySelector("main").replaceChildren(live);
    const before = new Map([...live.querySelectorAll("[id]")].map((it) => [it.id, { node: it, parent: it.parentNode }]));
    const text = live.outerHTML;
    morph(live, wanted, new Update(true));
    const moved = [...live.querySelectorAll("[id]")].filter((it) => {
      const known = before.get(it.id);
      return known && known.node !== it && known.parent === it.parentNode && known.node.nodeName === it.nodeName;
    });
    if (!live.isEqualNode(wanted)) wrong.push(`${text} became ${live.outerHTML}, not ${wanted.outerHTML}`);
    if (moved.length > 0) wrong.push(`${moved[0].id} is another node: ${text} to ${wanted.outerHTML}`);
  }
  return wrong.slice(0, 3);
"##;

/// 100 updates of a list, in each of which rows move, appear and vanish around what the reader does.
const READER: &str = r##"
  const row = (n, text) =>
    `<tr id="r-${n}"><td><input name="n" value=""></td><td><details><summary>s</summary>${text}</details></td><td>row ${n}</td></tr>`;
  const list = (rows, text) => {
    const box = document.createElement("div");
    box.innerHTML = `<div class="scroll"><table><tbody>${rows.map((n) => row(n, text)).join("")}</tbody></table></div>`;
    return box.firstElementChild;
  };
  const place = document.querySelector("main");
  const numbers = [...Array(12).keys()];
  place.replaceChildren(list(numbers, "first"));
  const live = place.firstElementChild;
  const input = document.querySelector("#r-5 input");
  input.focus();
  input.value = "typed";
  input.setSelectionRange(1, 3);
  document.querySelector("#r-7 input").value = "left";
  document.querySelector("#r-3 details").open = true;
  const chosen = document.querySelector("#r-9 td:last-child").firstChild;
  const nodes = new Map([3, 5, 7, 9].map((n) => [n, document.getElementById(`r-${n}`)]));
  const wrong = [];
  for (let update = 0; update < 100; update += 1) {
    const rows = shuffled([...numbers.filter((n) => nodes.has(n) || random(3)), 100 + update]);
    document.getSelection().setBaseAndExtent(chosen, 0, chosen, 3);
    input.focus();
    input.setSelectionRange(1, 3);
    morph(live, list(rows, `update ${update}`), new Update(true));
    const shown = [...live.querySelectorAll("tr")].map((it) => it.id);
    const check = (what, holds) => holds || wrong.push(`${update}: ${what}`);
    check(`order ${shown}`, shown.join() === rows.map((n) => `r-${n}`).join());
    check("nodes", [...nodes].every(([n, node]) => document.getElementById(`r-${n}`) === node));
    check("focus", document.activeElement === input);
    check("typed text", input.value === "typed" && input.selectionStart === 1 && input.selectionEnd === 3);
    check("text left in a field", document.querySelector("#r-7 input").value === "left");
    check("open block", document.querySelector("#r-3 details").open);
    check("text node", document.querySelector("#r-9 td:last-child").firstChild === chosen);
    check("new text", document.querySelector("#r-3 details").lastChild.nodeValue === `update ${update}`);
  }
  return wrong.slice(0, 3);
"##;

/// Runs a script that uses the functions of the page's script; returns the differences that it found.
async fn differences(tab: &Tab, script: &str) -> Vec<String> {
    let lines = MODULES.iter().flat_map(|module| module.lines()).filter(|line| !line.starts_with("import "));
    let functions = lines.map(|line| line.strip_prefix("export ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let differing = tab.driver.run(&format!("{functions}\n{RANDOM}\n{script}")).await;
    differing.as_array().unwrap().iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn page_becomes_any_other_and_keeps_what_the_reader_does() {
    let fleet = fleet().await;
    with_browser(&fleet, "morph", async |tab| {
        // The functions run beside the script of the page, whose policy may exist only once.
        tab.driver.devtools("Page.setBypassCSP", json!({"enabled": true})).await;
        tab.go("/help").await;
        tab.wait(STARTED).await;
        for script in [PAIRS, READER] {
            let differing = differences(tab, script).await;
            assert!(differing.is_empty(), "{differing:#?}");
        }
    })
    .await;
}
