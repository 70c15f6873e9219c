"""The report's page shows the worst first, and fits a phone, a laptop and a wide screen, with few VMs and with many."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.browser import Page, chromium
from tests.commands.test_fleet_page import STATES, Opened, report, vm

# Of the fleets in the pictures: as many VMs, on as many nodes.
FLEETS = {11: 4, 500: 40, 5000: 300}
DOMAIN = ".dc1.example.com"


def fleet(number: int, *, known: bool = True) -> dict[str, Any]:
    """A report with long names, and with all columns if everything is known."""
    nodes = [f"worker-{at:03}.rack-{at % 6}{DOMAIN}" for at in range(FLEETS[number])]
    vms = [
        vm(
            f"payments-db-{at:04}",
            STATES[at % 5 % 3 % 2],
            nodes[at * 7 % len(nodes)],
            namespace=f"team-{at % 9}-platform",
        )
        | {"storageNode": nodes[at * 7 % len(nodes)] if not at % 5 % 3 % 2 else nodes[(at * 7 + 3) % len(nodes)]}
        | {
            "nextStep": "opt in, then restart, or reboot the guest" if at % 5 % 3 % 2 else "",
            "reason": "ShareManagerMoved",
        }
        | {"optedInBy": "storage-class", "ifStarted": {"text": f"anywhere; if opted in: pinned to {nodes[0]}"}}
        | ({"traffic": {"operations": 12345.6, "bytes": at * 10**6}} if known else {})
        | {"data": {"text": "best-effort, remote"}, "nfs": {"text": "exposed, can leave"}}
        for at in range(number)
    ]
    requested = {"cpu": 0.5, "memory": 0.93, "pods": 0.1}
    found = report(*vms) | {"nodes": [{"name": name, "requested": requested, "shareManagers": 9} for name in nodes]}
    apart = sum(each["state"] == "Apart" for each in vms)
    found["summary"] |= {"vms": number, "apart": apart, "togetherAfterRecolocate": apart // 2, "traffic": {"bytes": 1}}
    found["summary"] |= {"together": number - apart} | ({} if known else {"traffic": None})
    found["summary"]["nfs"] = {"text": "a sentence"} if known else {}
    found["summary"]["data"] = {"text": "another one", "remote": 9} if known else {}
    found["history"] = {"apart": [[1_700_000_000 + 900 * at, apart - at % 7] for at in range(97)]}
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def resize(page: Page, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")


def overflow(page: Page) -> Any:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("number", FLEETS)
def test_the_page_never_scrolls_sideways_and_shows_what_to_do(browser: Page, tmp_path: Path, number: int) -> None:
    opened = Opened(browser, tmp_path / "report.html", fleet(number))
    shown = "(() => { const {left, right} = document.querySelector('td[data-label=\"What to do\"]')"
    shown += ".getBoundingClientRect(); return left >= 0 && right <= innerWidth && right - left > 100 })()"
    cut = "[...document.querySelectorAll('tbody :is(th, td:is([data-label=Node], [data-label=Storage]))')]"
    cut += ".filter((e) => e.scrollWidth > e.clientWidth).length"
    for width in (390, 768, 1024, 1280, 1920):
        resize(browser, width)
        opened.do("#tab-map", "click()")
        assert (width, overflow(browser)) == (width, 0)
        opened.do("#tab-table", "click()")
        assert (width, overflow(browser)) == (width, 0)
        assert (width, browser.evaluate(shown), browser.evaluate(cut)) == (width, True, 0)
    assert browser.errors == []


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("number", FLEETS)
def test_1280_pixels_have_the_headline_and_the_filters_in_one_row_each(
    browser: Page, tmp_path: Path, number: int
) -> None:
    opened = Opened(browser, tmp_path / "report.html", fleet(number))
    tops = "new Set([...document.querySelectorAll('#states button, #filters :is(select, input), [type=reset]')]"
    assert browser.evaluate(f"{tops}.map((e) => Math.round(e.getBoundingClientRect().bottom / 9))).size") == 1
    assert browser.evaluate("document.querySelector('#headline').offsetHeight") < 40
    top, bottom = browser.evaluate(
        "['#headline', '#trend'].map((of) => document.querySelector(of).getBoundingClientRect().bottom)"
    )
    assert abs(bottom - top) < 20
    one_line = (
        "(() => { const rows = [...document.querySelectorAll('tbody tr')].map((e) => e.offsetHeight);"
        " return Math.max(...rows) })()"
    )
    opened.do("#tab-table", "click()")
    assert browser.evaluate(one_line) < 36
    assert browser.evaluate("document.querySelector('details#more').open") is False


@pytest.mark.needs("chromium")
def test_the_headline_is_one_number_and_one_action_and_the_rest_is_folded(browser: Page, tmp_path: Path) -> None:
    content = fleet(500)
    content["summary"]["text"] = "500 VMs: 300 together, 200 apart; 100 of 200 would be together after recolocate"
    content["warnings"] = ["no traffic from Prometheus"]
    content["summary"]["outages"] = {"text": "1 VM runs without a disk"}
    opened = Opened(browser, tmp_path / "report.html", content)
    assert opened.texts("#headline") == ["200 of 500 VMs are apart. recolocate brings 100 together."]
    assert opened.texts("#headline code") == ["recolocate"]
    assert opened.texts("#outages") == ["1 VM runs without a disk"]
    assert opened.texts("#more summary") == ["All counts, NFS and data, 1 warning"]
    assert opened.texts("#summary li") == [
        "500 VMs: 300 together, 200 apart",
        "100 of 200 would be together after recolocate",
        "a sentence",
        "another one",
        "no traffic from Prometheus",
    ]
    assert opened.texts("#trend figcaption") == ["194 to 200 apart in the last day"]
    assert browser.evaluate("document.querySelector('#summary').checkVisibility()") is False
    opened.update(content | {"history": {"apart": []}, "warnings": []})
    assert browser.evaluate("document.querySelector('#trend').checkVisibility()") is False
    assert opened.texts("#more summary") == ["All counts, NFS and data"]


@pytest.mark.needs("chromium")
def test_the_table_begins_with_the_worst_vm_and_search_reaches_claims_and_nodes(browser: Page, tmp_path: Path) -> None:
    rates = {"b": 3, "c": 70}
    vms = [vm(name, "Apart", claim=f"{name}-data", nextStep="recolocate") for name in "abc"]
    vms += [vm("d", "Stopped"), vm("e", outage={"pod": "longhorn-system/share-manager-e"}), vm("f", "Unserved")]
    content = report(*(each | {"traffic": {"operations": 1, "bytes": rates.get(each["name"], 0)}} for each in vms))
    content["summary"]["traffic"] = {"bytes": 73}
    opened = Opened(browser, tmp_path / "report.html", content)
    opened.do("#tab-table", "click()")
    assert opened.texts("tbody th") == ["e", "c", "b", "a", "f", "d"]
    assert opened.texts('thead th[aria-sort="ascending"]') == ["State"]
    opened.do('thead th[data-label="MB/s"] button', "click()")
    assert opened.texts("tbody th")[-1] == "c"
    opened.write("#search", "B-DATA node-b")
    assert opened.texts("tbody th") == ["b"]
    opened.do("tbody th button", "click()")
    assert "b-data" in opened.texts("#details dd")
    assert browser.evaluate("location.hash.includes('search=b-data+node-b')") is True
    opened.do("#tab-map", "click()")
    assert opened.texts(".vm .rate") == ["0.0 MB/s"]


@pytest.mark.needs("chromium")
def test_a_cell_of_the_matrix_says_how_many_vms_also_if_it_is_one(browser: Page, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path / "report.html", fleet(500, known=False))
    numbers = opened.texts(".cell")
    assert len(numbers) > 10
    assert all(number.isdigit() for number in numbers), json.dumps(numbers)
    one = report(*(vm(f"v{at}", "Apart", f"node-{at}") for at in range(14)))
    assert set(Opened(browser, tmp_path / "report.html", one).texts(".cell.Apart")) == {"1"}
