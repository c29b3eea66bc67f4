"""Running the tutorials as a reader does."""

from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from mttl.io.errors import ConfigError

TUTORIALS = load_recipe(ROOT / "scripts" / "docs" / "write_tutorials.py")

PAGE = """\
# A page

```
not-run
```

```yaml
# mine.yaml
k: 32
```

```bash
number=3
cat mine.yaml
cat  # reads no block
sleep 60 &
```

```text
```

```bash
echo $number $PWD/x; echo what a library says >&2
```

```text
an old output
```

```python
n = 4
```

```python
print(n)
print("Scores")
for _ in range(9):
    print("│ verb │")
print("end")
```

<!-- from Scores to end -->
```text
```
"""
SHORT = "…\nScores\n" + 3 * "│ verb │\n" + "│ …\n…\n"


def test_a_page_runs_in_one_shell_and_one_python(tmp_path: Path) -> None:
    outputs = [*TUTORIALS.run(TUTORIALS.blocks(PAGE), tmp_path)]
    page = TUTORIALS.filled(PAGE, outputs)
    first, second, third = (part.split("```\n")[0] for part in page.split("```text\n")[1:])
    assert (first, second, third) == ("# mine.yaml\nk: 32\n", "3 x\n", SHORT)
    without = page.replace(f"text\n{first}", "text\n").replace(third, "")
    assert without.replace("3 x", "an old output") == PAGE
    again = [*TUTORIALS.run(TUTORIALS.blocks(page), tmp_path)]
    assert TUTORIALS.filled(page, again) == page


@pytest.mark.parametrize("block", ["bash\nfalse", "python\n1 / 0"])
def test_a_block_that_fails_is_named(block: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"status 1:(.|\n)*{block[-5:]}"):
        list(TUTORIALS.run(TUTORIALS.blocks(f"```{block}\n```\n"), tmp_path))


def test_words_that_no_line_begins_with_are_named() -> None:
    with pytest.raises(ConfigError, match="no line begins with 'Scores':\nother"):
        TUTORIALS.filled("```bash\nx\n```\n\n<!-- from Scores -->\n```text\n```\n", ["other\n"])


def test_bars_and_colours_are_left_out() -> None:
    terminal = (
        "\x1b[3mScores\x1b[0m\r\n┏━━━━━━━━━━━━┓\r\n│ verb │ 84.4 │\r\n\x1b[2Ktraining "
        "\x1b[90m━━━━━━━━━━━━━━\x1b[0m 1/300\r\x1b[2Ktraining ━━━━━━━━━━━━━━ 2/300\r"
        "\x1b[2K\r\nLoading weights: 100%|███| 60/60\r\nThe run is in runs/x\r\n"
    )
    kept = "Scores\n┏━━━━━━━━━━━━┓\n│ verb │ 84.4 │\nThe run is in runs/x\n"
    assert TUTORIALS.printed(terminal) == kept
