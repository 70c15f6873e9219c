"""The report's page renders in a real browser, filters the VMs, and never takes a name for HTML."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.browser import Page, chromium
from webhook.commands.report.page import embedded_json, render
from webhook.placement.objects.fields import printable
from webhook.placement.reasons import Reason

STATES = ["Together", "Apart", "Unserved", "Waiting", "Stopped", "NotConcerned"]
HOSTILE = [
    "</script><script>document.title = 'injected'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title = 'injected'\">",
    "\"' onfocus=alert(1) autofocus x='",
    "\u2028document.title = 'injected'\u2029",
    "]]><svg onload=alert(1)>",
    "{{scripts}}{{report}}",
    "&lt;b&gt;&#x3c;i>",
    "\ud800 \x00 \x1b[31m",
    "__proto__",
    "\u202egnp.exe \u2066\u200b",
]


def vm(name: str, state: str = "Together", node: str | None = "node-a", **changes: Any) -> dict[str, Any]:
    """A VM in a report."""
    storage = "node-b" if state == "Apart" else node if state == "Together" else None
    return {
        "namespace": "shop",
        "name": name,
        "optedInBy": "annotation",
        "node": None if state in ("Waiting", "Stopped") else node,
        "storageNode": storage,
        "claim": f"{name}-disk",
        "state": state,
        "reason": Reason.CO_SCHEDULED,
        "ifStarted": {"node": storage, "text": f"pinned to {storage}"},
        "advice": "Restart the VM.",
    } | changes


def report(*vms: dict[str, Any]) -> dict[str, Any]:
    names = sorted({each["node"] for each in vms if each["node"]} | {"node-a", "node-b"})
    requested = {"cpu": 0.5, "memory": 0.93, "pods": 0.1}
    nodes = [
        {"name": name, "vms": sum(each["node"] == name for each in vms), "shareManagers": 1, "requested": requested}
        for name in names
    ]
    return {"vms": list(vms), "nodes": nodes, "summary": {"text": f"{len(vms)} VMs"}}


def five_hundred_vms() -> dict[str, Any]:
    return report(
        *(
            vm(f"vm-{number}", STATES[number % 6], f"node-{number % 20}", namespace=f"team-{number % 4}")
            for number in range(500)
        )
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


class Opened:
    """The page of a report in the browser."""

    def __init__(self, page: Page, file: Path, content: dict[str, Any], link: str = "") -> None:
        file.write_text(render(content), encoding="utf-8")
        self.page = page
        page.open(link or file.as_uri())

    def texts(self, selector: str) -> Any:
        return self.page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def count(self, selector: str) -> int:
        return len(self.texts(selector))

    def do(self, selector: str, action: str) -> None:
        self.page.evaluate(f"document.querySelector({json.dumps(selector)}).{action}; undefined")

    def update(self, content: dict[str, Any]) -> None:
        """Show another report, as a dashboard does."""
        self.page.evaluate(f"update({json.dumps(json.dumps(content))})")

    def choose(self, selector: str, value: str) -> None:
        self.do(selector, f"value = {json.dumps(value)}")
        self.do(selector, "dispatchEvent(new Event('change'))")

    def write(self, selector: str, value: str) -> None:
        self.do(selector, "focus()")
        self.page.write(value)

    @property
    def shown(self) -> str:
        return str(self.texts("#count")[0])

    @property
    def focused(self) -> str:
        return str(self.page.evaluate("document.activeElement.textContent"))


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    return tmp_path / "report.html"


def test_the_page_loads_nothing_and_embeds_json_that_html_does_not_interpret() -> None:
    page = render(report(vm("{{scripts}}")))
    assert page.count("{{scripts}}") > 0  # no placeholder of the template
    assert set(re.findall(r"\bhttps?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"<(?:link|img|iframe|script)[^>]*\b(?:src|href)=", page)
    assert "innerHTML" not in page
    for name in (*HOSTILE, "</ScRiPt", "--!>"):
        encoded = embedded_json({name: name})
        assert encoded.isascii()
        assert not set(encoded) & set("<>&")
        assert json.loads(encoded) == {name: name}


@pytest.mark.needs("chromium")
def test_500_vms_are_drawn_and_listed_and_filters_combine_and_reset(browser: Page, page_file: Path) -> None:
    opened = Opened(browser, page_file, five_hundred_vms())
    assert sum(int(text or 1) for text in opened.texts(".cell")) == 84 + 84  # together and apart
    assert opened.shown == "500 of 500 VMs shown"
    assert opened.texts("#summary") == ["500 VMs"]
    opened.do("#tab-table", "click()")
    assert opened.count("tbody tr") == 500
    assert browser.errors == []
    assert browser.requests == [page_file.as_uri()]
    opened.do("#tab-map", "click()")
    opened.choose("#namespace", "team-1")
    assert opened.shown == "125 of 500 VMs shown"
    assert opened.texts("#states b") == ["0", "42", "0", "41", "0", "42"]
    opened.do('[data-state="Apart"]', "click()")
    assert opened.shown == "42 of 500 VMs shown"
    opened.do('[data-state="Waiting"]', "click()")
    assert opened.shown == "83 of 500 VMs shown"
    opened.write("#search", "VM-13")
    assert sorted(opened.texts(".vm .text")) == ["vm-13", "vm-133"]
    opened.do("#tab-table", "click()")
    assert opened.texts("tbody th") == ["vm-13", "vm-133"]
    opened.do("#filters [type=reset]", "click()")
    assert opened.shown == "500 of 500 VMs shown"
    assert opened.count('#filters [aria-pressed="true"]') == 0


@pytest.mark.needs("chromium")
def test_boxes_count_what_the_filters_leave_and_lines_lead_to_the_storage(browser: Page, page_file: Path) -> None:
    vms = [vm("a", "Apart"), vm("b", "Apart"), vm("c", "Apart", "node-c", namespace="other"), vm("d", "Stopped")]
    content = report(*vms)
    content["nodes"][1] |= {"ready": False, "cordoned": True}
    content["summary"] = {"together": 6, "apart": 3, "stopped": 0, "text": "9 VMs"}  # also of VMs not listed
    opened = Opened(browser, page_file, content)
    assert opened.texts("#summary li") == ["9 VMs"]
    shares = browser.evaluate("[...document.querySelectorAll('#shares span')].map((e) => e.title)")
    assert shares == ["6 together", "3 apart"]
    script = "[...document.querySelectorAll('#lines g')].map((g) => ({...g.dataset, n: g.textContent}))"
    from_a = {"from": "node-a", "to": "node-b", "n": "2"}
    assert browser.evaluate(script) == [from_a, {"from": "node-c", "to": "node-b", "n": "1"}]
    assert opened.texts(".node h2") == ["node-a", "node-b", "node-c", "Not on a node"]
    opened.choose("#namespace", "shop")
    assert browser.evaluate(script) == [from_a]
    assert opened.texts(".facts")[:2] == ["2 VMs", "serves 2 VMs elsewhere, NotReady, cordoned"]


@pytest.mark.needs("chromium")
def test_the_vms_of_many_nodes_are_a_matrix_whose_cells_list_them(browser: Page, page_file: Path) -> None:
    vms = [vm(f"local-{number}", node=f"node-{number}") for number in range(13)]
    moving = {"ifStarted": {"node": "node-b", "together": True}}
    following = {"cold": True, "together": True, "stoppedBy": "NotOptedIn"}
    migrating = {"plan": {"action": "migrate"}}
    vms += [vm("a", "Apart", "node-3", **moving), vm("b", "Apart", "node-3", **migrating)]
    vms += [vm("c", "Apart", "node-9", ifStarted=following, plan={"action": "restart"})]
    rates = {"a": 1, "b": 2, "c": 60}
    content = report(
        *(each | {"traffic": {"operations": 9, "bytes": rates.get(each["name"], 0) * 10**6}} for each in vms)
    )
    content["summary"]["traffic"] = {"bytes": 63e6}
    content["nodes"][0] |= {"ready": False, "cordoned": True}
    opened = Opened(browser, page_file, content)
    opened.do("#tab-table", "click()")
    assert opened.texts("tbody th")[:3] == ["c", "b", "a"]
    opened.do("#tab-map", "click()")
    depths = browser.evaluate("[...document.querySelectorAll('.cell.Apart')].map((e) => e.dataset.depth)")
    assert depths == ["2", "5"]
    assert opened.texts(".label.row")[:3] == ["node-b", "node-3", "node-9"]  # those with the most VMs apart
    assert opened.texts(".total")[:3] == ["0 of 0 apart", "2 of 3 apart", "1 of 2 apart"]
    opened.do('.cell[data-row="node-3"][data-column="node-b"]', "click()")
    assert opened.texts("#members h2, #members .text") == ["2 VMs on node-3, storage on node-b, 3.0 MB/s", "a", "b"]
    opened.do("#members .vm", "click()")
    assert opened.texts("#details h2") == ["⇄ shop/a"]

    opened.do(".switch button:last-child", "click()")  # after recolocate
    assert opened.texts('.cell[data-row="node-b"]') == ["1"]
    assert opened.texts(".total")[:3] == ["0 of 1 apart", "1 of 2 apart", "1 of 2 apart"]
    opened.do(".switch button:nth-child(2)", "click()")  # after a restart
    titles = browser.evaluate(
        "[...document.querySelectorAll('.cell.Apart, .cell[data-column=\"\"]')].map((e) => e.title)"
    )
    assert titles == [
        "1 VM on node-3, storage on node-b, 2.0 MB/s",
        "1 VM of node-9 on any node, the share-manager follows",
    ]
    assert "together, 15 (1 of them need an opt-in first)" in opened.texts(".matrix-head .hint")[0]
    assert opened.texts('.cell[data-row="node-b"]') == ["1"]
    opened.write("#search", "node-0")
    assert opened.shown == "1 of 16 VMs shown"
    assert opened.texts(".node h2") == ["node-0"]
    assert browser.errors == []


@pytest.mark.needs("chromium")
def test_one_tab_stop_leads_to_the_matrix_arrows_move_in_it_and_escape_closes_a_cell(
    browser: Page, page_file: Path
) -> None:
    opened = Opened(browser, page_file, five_hundred_vms())
    assert opened.count('.cell[tabindex="0"]') == 1
    opened.do('.cell[tabindex="0"]', "focus()")
    at = "(({row, column}) => [row, column])(document.activeElement.dataset)"
    start = browser.evaluate(at)
    browser.press("ArrowDown")
    below = browser.evaluate(at)
    browser.press("ArrowLeft")
    browser.press("ArrowRight")
    assert below[0] != start[0]
    assert browser.evaluate(at)[0] == below[0]
    assert opened.count('.cell[tabindex="0"]') == 1
    cell = browser.evaluate(at)
    browser.press("Enter")
    assert opened.count("#members .vm") > 0
    assert opened.count('#members .vm[tabindex="0"]') == 1
    opened.do("#members .vm", "click()")
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#details').hidden") is True
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#members').hidden") is True
    assert browser.evaluate(at) == cell


@pytest.mark.needs("chromium")
def test_a_link_shows_the_same_filters_view_cell_and_vm(browser: Page, page_file: Path) -> None:
    opened = Opened(browser, page_file, five_hundred_vms())
    opened.do(".switch button:nth-child(3)", "click()")
    opened.do('[data-state="Apart"]', "click()")
    opened.do('[data-state="Together"]', "click()")
    opened.do(".cell", "click()")
    opened.do("#members .vm", "click()")
    shown = [opened.texts(each) for each in ("#details h2", "#members h2", ".switch [aria-pressed=true]")]
    link = browser.evaluate("location.href")
    opened = Opened(browser, page_file, five_hundred_vms(), link)
    assert [opened.texts(each) for each in ("#details h2", "#members h2", ".switch [aria-pressed=true]")] == shown
    assert opened.shown == "168 of 500 VMs shown"
    opened.do("#tab-table", "click()")
    opened.choose("#namespace", "team-1")
    opened.write("#search", "vm-13")
    opened.do("thead th:nth-child(2) button", "click()")
    opened.do("thead th:nth-child(2) button", "click()")
    rows = opened.texts("tbody tr")
    opened = Opened(browser, page_file, five_hundred_vms(), browser.evaluate("location.href"))
    assert (opened.texts("tbody tr"), len(rows)) == (rows, 2)
    browser.evaluate("location.hash = '#state=Stopped&vm=shop/unknown&when=never&cell=&sort=-VM'")
    assert opened.shown == "83 of 500 VMs shown"
    assert browser.errors == []


@pytest.mark.needs("chromium")
def test_1400_pixels_show_20_rows_and_whole_names_without_their_domain(browser: Page, page_file: Path) -> None:
    long = {"ifStarted": {"text": "anywhere; if opted in: pinned to a node " * 3}, "advice": "Restart the VM. " * 9}
    nodes = [f"rack-{number:02}-worker.dc1.example.com" for number in range(20)]
    vms = [vm(f"database-{n}", STATES[n % 2], nodes[n % 20], storageNode=nodes[n % 7], **long) for n in range(60)]
    opened = Opened(browser, page_file, report(*vms) | {"nodes": []})
    size = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    cut = "[...document.querySelectorAll('.label.row')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert browser.evaluate(cut) == 0
    assert "rack-03-worker" in opened.texts(".label.row")
    opened.do("#tab-table", "click()")
    below = "[...document.querySelectorAll('tbody tr')].filter((e) => e.getBoundingClientRect().bottom <= 900).length"
    assert browser.evaluate(below) >= 20
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1400


@pytest.mark.needs("chromium")
def test_a_selected_vm_shows_what_a_start_would_decide_and_commands_to_copy(browser: Page, page_file: Path) -> None:
    advised = ["kubevirt-scheduler opt-in a -n shop --yes", "virtctl restart a -n shop"]
    opened = Opened(browser, page_file, report(vm("a'; reboot", "Apart", commands=advised), vm("b")))
    opened.do(".vm.Apart", "click()")
    assert opened.texts("#details h2") == ["⇄ shop/a'; reboot"]
    assert {"apart", "yes", "node-b", "pinned to node-b", "Restart the VM."} <= set(opened.texts("dd"))
    assert opened.texts("#details code") == [*advised, "kubevirt-scheduler explain vm 'a'\\''; reboot' -n shop"]
    assert opened.count("#lines .own") == 1
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#details').hidden") is True
    assert opened.focused == "⇄a'; reboot"
    opened.update(report(vm("a", "Apart", optedInBy=None, optedOut=True, ifStarted=None)))
    opened.do(".vm.Apart", "click()")
    assert "opted out" in opened.texts("dd")


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("known", [True, False])
def test_the_page_names_its_source_its_warnings_and_whether_the_data_is_beside_the_share_manager(
    browser: Page, page_file: Path, *, known: bool
) -> None:
    content = report(vm("a", data={"locality": "disabled", "local": False, "text": "disabled, remote"}))
    content["summary"]["data"] = {"local": 0, "remote": int(known), "text": "data of the volumes: a sentence"}
    content["summary"]["workloads"] = {"text": "opted-in pods that are no VMs: 1 apart"}
    content |= {"source": "cluster.yaml (2026-11-28 02:00 UTC)", "warnings": ["no traffic from Prometheus"]}
    opened = Opened(browser, page_file, content)
    assert opened.texts("#source") == ["cluster.yaml (2026-11-28 02:00 UTC)"]
    lines = ["1 VMs", "data of the volumes: a sentence", "opted-in pods that are no VMs: 1 apart"]
    assert opened.texts("#summary li") == [*lines, "no traffic from Prometheus"]
    assert opened.texts("#more summary") == ["All counts, NFS and data, 1 warning"]
    opened.do("#tab-table", "click()")
    assert opened.texts('td[data-label="Data"]') == ["disabled, remote"] * known


@pytest.mark.needs("chromium")
def test_hostile_names_never_become_html(browser: Page, page_file: Path) -> None:
    fields = ("name", "namespace", "node", "storageNode", "claim", "reason", "advice", "state")
    vms = [vm("a", "Apart") | {field: text} for text in HOSTILE for field in fields]
    opened = Opened(browser, page_file, report(*vms))
    browser.evaluate("for (const button of document.querySelectorAll('.vm')) button.click()")
    opened.do("#tab-table", "click()")
    assert browser.evaluate("document.title") == "VMs and their storage"
    assert browser.errors == []
    assert browser.requests == [page_file.as_uri()]
    assert opened.count("script, img, iframe, object, embed, base, link, a") == 7  # six scripts and the skip link
    assert set(map(printable, HOSTILE)) <= set(opened.texts("tbody th"))
    assert not [text for text in opened.texts(".vm, td, th, h2, option") if text != printable(text)]
    handlers = (
        "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames()).filter((n) => n.startsWith('on'))"
    )
    assert browser.evaluate(handlers) == []


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(
    "injected",
    [
        "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)",
        "const a = document.createElement('a'); a.href = 'javascript:document.title = 1'; a.click()",
        "const s = document.createElement('style'); s.textContent = 'body {color: red}'; document.body.append(s)",
        "const s = document.createElement('script'); s.src = 'http://127.0.0.1:9/'; document.body.append(s)",
        "fetch('http://127.0.0.1:9/').catch(() => 0)",
    ],
)
def test_the_policy_blocks_injected_content_and_requests(browser: Page, page_file: Path, injected: str) -> None:
    Opened(browser, page_file, report(vm("a")))
    blocked = (
        "new Promise((done) => { addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));"
        f" setTimeout(() => done('nothing'), 5000); {injected} }})"
    )
    assert browser.evaluate(blocked) in (
        "script-src-elem",
        "script-src-attr",
        "style-src-elem",
        "connect-src",
        "img-src",
    )
    assert browser.evaluate("document.title") == "VMs and their storage"


@pytest.mark.needs("chromium")
def test_the_keyboard_reaches_each_view_and_each_vm(browser: Page, page_file: Path) -> None:
    opened = Opened(browser, page_file, report(vm("a"), vm("b"), vm("c", "Apart")))
    assert opened.count('.node[data-node="node-a"] .vm[tabindex="0"]') == 1  # the arrow keys reach the others
    opened.do(".vm", "focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert opened.focused == "⇄c"
    browser.press("Enter")
    assert opened.texts("#details h2") == ["⇄ shop/c"]
    opened.do("#tab-map", "focus()")
    browser.press("ArrowRight")
    assert opened.focused == "Table"
    assert opened.count("tbody tr") == 3


@pytest.mark.needs("chromium")
def test_a_node_says_what_its_drain_does(browser: Page, page_file: Path) -> None:
    content = report(vm("vm-1"), vm("vm-2", node="node-b"))
    row = {"namespace": "shop", "name": "<b>vm-1", "node": "node-a", "text": "Restarts", "why": "it has a GPU"}
    waits = {"kind": "Volume", "name": "vol-1", "detail": "its last healthy replica is here"}
    content["nodes"][0]["drain"] = {"interrupted": 1, "safe": False, "vms": [row], "obstacles": [waits]}
    content["nodes"][1]["drain"] = {"interrupted": 0, "safe": True, "vms": [], "obstacles": []}
    opened = Opened(browser, page_file, content)
    assert opened.texts(".drain summary") == ["If drained: 1 VM interrupted, not safe: volume"]
    assert opened.texts("[data-node=node-a] .drain p") == [
        "shop/<b>vm-1 (node-a): Restarts. it has a GPU",
        "Volume vol-1: its last healthy replica is here",
    ]
    opened.do(".drain summary", "click()")
    opened.update(content | {"summary": {"text": "changed"}})
    assert opened.texts("#summary li") == ["changed"]
    assert opened.count(".drain[open]") == 1


@pytest.mark.needs("chromium")
def test_a_table_that_shows_all_vms_still_does_after_an_update(browser: Page, page_file: Path) -> None:
    opened = Opened(browser, page_file, report(*(vm(f"vm-{number}") for number in range(501))))
    opened.do("#tab-table", "click()")
    assert opened.count("tbody tr") == 500
    opened.do("#table .hint button", "click()")
    assert opened.count("tbody tr") == 501
    opened.update(report(*(vm(f"vm-{number}") for number in range(502))))
    assert opened.count("tbody tr") == 502
