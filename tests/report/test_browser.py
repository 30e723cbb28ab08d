"""The page in a real browser: no errors, no requests, charts, the viewer, filters, live data, phone and print."""

import contextlib
import re

import numpy as np
import pytest

import rbi
from rbi import runs
from rbi.data.formats import FormatSettings, TableConfig
from tests.report.pages import decisions_log, image_log, serving, training_line, training_run, write_run

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
pytestmark = pytest.mark.slow
ATTACK = "<img src=x onerror=alert(1)>"


@pytest.fixture
def browse(chromium):
    """Opens a page; afterwards there must have been no error and no request but for the page itself."""
    faults = []

    @contextlib.contextmanager
    def open_page(address, size=DESKTOP, **options):
        with chromium.new_context(viewport=size, **options) as context:
            page = context.new_page()
            page.set_default_timeout(10_000)
            own = str(address) if str(address).startswith("http") else address.as_uri()
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("dialog", lambda dialog: (faults.append("a dialog"), dialog.dismiss()))
            page.on("request", lambda r: r.url.startswith((own, "data:")) or faults.append(f"requests {r.url}"))
            page.goto(own)
            yield page
            width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert width[0] <= width[1], "the page is wider than the screen"

    yield open_page
    assert faults == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A page that compares ten settings with two seeds each."""
    folder = tmp_path_factory.mktemp("trained")
    paths = []
    for size in range(10):
        settings = {"algo": "rbi", "env": "CartPole-v1", "note": ATTACK, "learner": {"batch_size": size}}
        for seed in range(2):
            scores = 10 * size + np.arange(5.0)
            paths.append(training_run(folder / f"{size}-{seed}", scores, settings=settings, seed=seed))
    return rbi.write_report(paths, folder / "page.html", title=ATTACK)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A page with an episode of images, eight steps long."""
    folder = tmp_path_factory.mktemp("watched")
    data = image_log(folder / "store")
    run = write_run(folder / "run", "improve", settings={"data": str(data)}, result={})
    return rbi.write_report(run, folder / "page.html", policy=folder / "policy", progress=False)


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_draw_at_every_width_and_in_both_themes(browse, trained, size, theme):
    with browse(trained, size, color_scheme=theme) as page:
        chart = page.locator("#comparison svg.lines").first
        assert chart.locator("path.line").count() == 8
        assert chart.locator("path.band").count() == 8
        assert chart.locator("path.line").first.get_attribute("d").startswith("M")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 21, 27)") == (theme == "dark")
        assert page.locator("h1").inner_text() == ATTACK


def test_the_axis_is_selected_for_all_charts_and_values_are_read_with_arrow_keys(browse, trained):
    with browse(trained) as page:
        cards = page.locator("figure:has(svg.lines)")
        cards.first.get_by_role("button", name="updates").click()
        for number in range(3):
            assert "updates" in cards.nth(number).locator("svg.lines text").all_text_contents()
        chart = cards.first.locator("svg.lines")
        chart.focus()
        page.keyboard.press("End")
        assert cards.first.locator(".tip").inner_text().startswith("updates: 50")
        page.keyboard.press("ArrowLeft")
        assert not cards.first.locator(".tip").inner_text().startswith("updates: 50")


def test_at_most_eight_lines_are_shown_and_each_can_be_switched(browse, trained):
    with browse(trained) as page:
        card = page.locator("#comparison figure:has(svg.lines)").first
        assert card.locator(".chip").count() == 10
        card.get_by_role("button", name="batch_size 9").click()
        assert card.locator('.chip[aria-pressed="true"]').count() == 8
        card.get_by_role("button", name="batch_size 0").click()
        assert card.locator("path.line").count() == 7
        assert card.locator("text.direct").count() == 7


def test_settings_are_filtered_and_printing_shows_them(browse, trained):
    with browse(trained) as page:
        about = page.locator("details.about").first
        about.locator("summary").click()
        assert ATTACK in about.inner_text()
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert not page.locator("nav").is_visible()
        assert page.locator("details.about[open]").count() == 20


def test_charts_are_drawn_again_for_the_width_of_paper(browse, trained):
    width = "document.querySelector('svg.lines').viewBox.baseVal.width"
    with browse(trained) as page:
        page.locator("svg.lines").first.wait_for()
        before = page.evaluate(width)
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(width) < 900 < before
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(width) == before


def test_tables_fit_the_paper(browse, tmp_path):
    paths = [training_run(tmp_path / f"algorithm-with-a-long-name-{seed}", seed=seed) for seed in range(6)]
    with browse(rbi.write_report(paths, tmp_path / "page.html"), {"width": 703, "height": 900}) as page:
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 1).length"
        assert page.locator(".scroll").count()
        assert page.evaluate(cut) == 0


def test_printed_pages_are_full(browse, trained):
    """A run's charts and settings take about a page: cards side by side, settings in two columns."""
    with browse(trained) as page:
        pages = len(re.findall(rb"/Type /Page\b", page.pdf(format="A4", prefer_css_page_size=True)))
    assert 11 < pages < 31  # 20 runs; 22 pages here, 41 in one column


def test_the_theme_button_goes_through_its_three_states(browse, trained):
    with browse(trained, color_scheme="light") as page:
        button, themes = page.locator("#theme"), []
        for _ in range(3):
            button.click()
            themes.append((button.inner_text(), page.evaluate("document.documentElement.dataset.theme || ''")))
        assert themes == [("Theme: light", "light"), ("Theme: dark", "dark"), ("Theme: auto", "")]


def step_of(page):
    return int(page.locator(".viewer .now b").first.inner_text().split()[0])


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_an_episode_plays_pauses_and_scrubs(browse, watched, size):
    with browse(watched, size) as page:
        viewer, slider = page.locator(".viewer"), page.locator(".viewer input[type=range]")
        assert step_of(page) == 0
        viewer.get_by_role("button", name="Play").click()
        viewer.get_by_text("7 of 7", exact=True).wait_for()
        assert viewer.get_by_role("button", name="Play").is_visible()  # it stops at the end
        slider.fill("3")
        assert step_of(page) == 3
        assert "life lost" in viewer.locator(".now").inner_text()
        viewer.focus()
        for key, step in (("ArrowRight", 4), ("ArrowLeft", 3), ("Home", 0), ("End", 7)):
            page.keyboard.press(key)
            assert step_of(page) == step
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        assert viewer.get_by_role("button", name="Pause").is_visible()
        page.keyboard.press("Space")
        assert viewer.get_by_role("button", name="Play").is_visible()


def test_the_screen_is_the_frame_of_the_step_and_the_timeline_marks_rewards_and_lives(browse, watched):
    frames = rbi.load_episodes(watched.parent / "store")[0].observations
    with browse(watched) as page:
        page.locator(".viewer input[type=range]").fill("5")
        pixels = "(c => [...c.getContext('2d').getImageData(0, 0, 12, 12).data].filter((_, i) => i % 4 === 0))"
        shown = page.evaluate(f"{pixels}(document.querySelector('.viewer canvas'))")
        assert np.array_equal(np.reshape(shown, (12, 12)), frames[5])
        assert page.locator(".timeline path.reward").count() == 1
        assert page.locator(".timeline path.life").count() == 1
        assert page.locator("table.actions tbody tr").count() == 3
        assert page.locator("table.actions tr.taken").count() == 1


def test_jumping_goes_to_the_step_with_the_largest_change(browse, improved, tmp_path):
    with browse(rbi.write_report(improved, tmp_path / "page.html")) as page:
        change = page.evaluate(
            "JSON.parse(document.getElementById('data').textContent).runs[0].viewer.episodes.at(-1).change"
        )
        page.get_by_role("button", name="Where it changes most").click()
        assert change[step_of(page)] == max(change)
        assert page.locator(".features-plot path.line").count() == 2
        page.locator(".viewer select").first.select_option("0")
        assert step_of(page) == 0


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_decisions_are_searched_filtered_sorted_and_selected(browse, decided, tmp_path, size):
    with browse(rbi.write_report(decided, tmp_path / "page.html"), size) as page:
        viewer, rows = page.locator(".viewer"), page.locator(".decisions tbody tr")
        everything = rows.count()
        viewer.get_by_label("Search decisions").fill("phone")
        phones = rows.count()
        assert 0 < phones < everything
        assert all("phone" in text for text in rows.all_inner_texts())
        viewer.get_by_label("Taken", exact=True).select_option(label="discount")
        assert 0 < rows.count() < phones
        viewer.get_by_label("Feature", exact=True).select_option(label="age")
        viewer.get_by_label("at least of the feature").fill("50")
        ages = [int(text) for text in page.locator(".decisions tbody td:nth-child(2)").all_inner_texts()]
        assert ages
        assert min(ages) >= 50
        viewer.get_by_role("button", name="age", exact=True).click()
        ages = [int(text) for text in page.locator(".decisions tbody td:nth-child(2)").all_inner_texts()]
        assert ages == sorted(ages, reverse=True)
        page.locator(".decisions").focus()
        page.keyboard.press("ArrowDown")
        assert viewer.locator('tr[aria-selected="true"]').count() == 1
        assert f"{ages[min(1, len(ages) - 1)]}" in viewer.locator(".features").inner_text()


def test_long_names_stay_inside_their_charts_and_tables_and_are_told_apart(browse, tmp_path):
    log, name = (
        decisions_log(tmp_path / "log.csv"),
        "the answer to a question of a survey that nobody ever made shorter",
    )
    offer = "a discount of twenty percent for everybody who calls back within a week"
    log.write_text(log.read_text().replace("device", name).replace("discount", offer))
    table = TableConfig(action="offer", reward="paid", observations=("age", name), one_step=True)
    run = rbi.improve(log, settings=FormatSettings(table=table), updates=5, out=tmp_path / "run", progress=False)
    with browse(rbi.write_report(run.out, tmp_path / "page.html")) as page:
        outside = """nodes => nodes.filter(node => {
            const of = node.closest(".card").getBoundingClientRect(), own = node.getBoundingClientRect();
            return own.left < of.left || own.right > of.right;
        }).map(node => node.textContent)"""
        assert page.locator("svg.chart text").evaluate_all(outside) == []
        assert page.locator("table.actions td").evaluate_all(outside) == []
        labels = page.locator("figure", has_text="by feature").locator("text.strong").all_text_contents()
        assert len(set(labels)) == len(labels) == 3


@pytest.mark.parametrize("score", [12.0, 1234.0, -500.0, 100_000.0, 5e6])
def test_ticks_of_an_axis_are_different_numbers(browse, tmp_path, score):
    run = training_run(tmp_path / "run", score + np.arange(4) / 8)
    with browse(rbi.write_report(run, tmp_path / "page.html")) as page:
        chart = page.locator("svg.lines").first
        ticks = chart.locator('text[text-anchor="end"]').all_text_contents()
        assert len(set(ticks)) == len(ticks) > 2


def test_a_live_page_shows_new_metrics(browse, tmp_path):
    with serving(training_run(tmp_path / "run")) as server, browse(server.url) as page:
        assert "Last values: RBI: 40" in page.locator("svg.lines").first.get_attribute("aria-label")
        with runs.Writer.reopen(tmp_path / "run") as writer:
            writer.log(**training_line(40, 80.0))
        page.locator('svg.lines[aria-label*="RBI: 80"]').first.wait_for()
        assert "live, as of" in page.locator("#live").inner_text()
