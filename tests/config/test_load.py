import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mttl.config import load as load_module
from mttl.config.load import configs_dir, dump_config, find_file, load_config, merge, resolve_folder
from mttl.io.errors import ConfigError

Writer = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Return a function that writes f.yaml into an empty current folder, on top of the default."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str) -> str:
        Path("f.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
        return "crossfit.yaml+f.yaml"

    return write_file


def test_a_file_or_folder_is_looked_up_as_given_first(write: Writer) -> None:
    write("")
    Path("crossfit.yaml").write_text("run: {seed: 99}\n")
    assert find_file("crossfit.yaml") == Path("crossfit.yaml")
    assert find_file("router/shared", suffix=".yaml") == configs_dir() / "router" / "shared.yaml"
    assert find_file("partitions/lexical.json").parent == configs_dir() / "partitions"
    Path("configs/router").mkdir(parents=True)
    Path("configs/router/shared.yaml").write_text("")
    assert find_file("router/shared", suffix=".yaml") == Path("configs/router/shared.yaml")
    assert find_file("router/private", suffix=".yaml").is_absolute()
    with pytest.raises(ConfigError, match=r"^data\.tasks: the file '/none/mine\.yaml' does"):
        find_file("/none/mine.yaml", setting="data.tasks")
    with pytest.raises(ConfigError, match=r"^data\.partition: the file 'lexicl\.json' does not"):
        find_file("lexicl.json", setting="data.partition")
    assert resolve_folder("data/lexical") == configs_dir().parent / "data" / "lexical"
    assert resolve_folder("nowhere") == Path("nowhere")
    Path("data/lexical").mkdir(parents=True)
    assert resolve_folder("data/lexical") == Path("data/lexical")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("crosfit.yaml", "the file 'crosfit.yaml' does not exist in the working directory,"),
        ("crossfit.yaml+", r"empty file name; join several files as a.yaml\+b.yaml"),
        ("", "empty file name; join several files as a.yaml"),
    ],
)
def test_a_file_that_is_missing(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(names)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ("crossfit.yaml", "crossfit"),
        ("crossfit.yaml+router/shared.yaml", "crossfit-shared"),
        ("crossfit+router/shared", "crossfit-shared"),
        (["crossfit.yaml", "my.own"], "crossfit-my.own"),
    ],
)
def test_the_run_is_named_after_its_files(write: Writer, names: str | list[str], name: str) -> None:
    write("")
    Path("my.own.yaml").write_text("")
    assert load_config(names).run.name == name


def test_later_files_and_overrides_win(write: Writer) -> None:
    config = load_config(write("optim: {lr: 0.5}\nrun: {seed: 1}\n"), ["run.seed=2", "run.seed=3"])
    assert config.optim.lr == 0.5
    assert config.optim.router_lr == load_config("crossfit.yaml").optim.router_lr
    assert config.run.seed == 3


def test_another_kind_replaces_a_section(write: Writer) -> None:
    config = load_config(write("optim: {kind: adafactor}\ndata: {sampler: {kind: uniform}}\n"))
    assert config.optim.kind == "adafactor"
    assert config.optim.router_lr is None
    assert config.data.sampler.kind == "uniform"
    assert config.data.batch_size == load_config("crossfit.yaml").data.batch_size
    config = load_config("crossfit.yaml", ["router.kind=shared", "skills.n_skills=1"])
    assert config.router.model_dump() == {"kind": "shared", "granularity": "linear"}


def test_a_part_alone_is_told_what_to_stand_behind(write: Writer) -> None:
    for part in ("router/shared.yaml", "data/grid.yaml"):
        with pytest.raises(ConfigError, match=rf"complete file, such as crossfit\.yaml\+{part}$"):
            load_config(part)
    with pytest.raises(ConfigError, match=r"such as custom\.yaml\+router/shared\.yaml$"):
        load_config("router/shared.yaml", ["data.tasks=tasks.yaml"])
    for part in ("shared", "moe"):
        with pytest.raises(ConfigError, match=rf"file, such as babyai\.yaml\+babyai/{part}\.yaml$"):
            load_config(f"babyai/{part}.yaml")
    with pytest.raises(ConfigError, match=r"has no setting 'dri'\. Did you mean 'dir'\?$"):
        load_config(write("data: {dri: x}"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("optim.lr", (text, 0.001)) for text in ("1e-3", "1E-3", ".001", "+1e-3")),
        *(("data.dir", (word, word)) for word in ("no", "y", "1:30", "1_000", "2024-01-01")),
        *(("run.seed", pair) for pair in (("010", 10), ("09", 9), ("0o17", 15), ("0x1f", 31))),
    ],
)
def test_what_words_and_numbers_are(setting: str, value: tuple[str, object]) -> None:
    section, name = setting.split(".")
    config = load_config("crossfit.yaml", [f"{setting}={value[0]}"])
    assert getattr(getattr(config, section), name) == value[1]


@pytest.mark.parametrize("fragment", sorted((configs_dir() / "router").glob("*.yaml")))
def test_names_are_shown_where_a_router_does_not_tell_tasks_apart(fragment: Path) -> None:
    config = load_config(f"crossfit.yaml+{fragment}", ["data.prefix=auto"])
    read = config.router.kind in ("smear", "retrieval", "xlora")  # from the text alone
    one_for_all = config.router.kind in ("shared", "average", "random", "none")
    one_for_a_family = config.router.kind == "expert"  # in the lexical gym
    assert config.data.prefix == ("name" if read or one_for_all or one_for_a_family else "none")
    assert f"prefix: {config.data.prefix}\n" in dump_config(config)


@pytest.mark.parametrize(
    ("rows", "prefix"),
    [
        ("a,1,0\nb,0,1\n", "none"),
        ("a,1,0\nb,1, 0\n", "name"),  # written otherwise
        ("a,1,1\nb,0.5,0.5\n", "name"),  # in the same shares
        ("a,0.1,0.2\nb,0.3,0.6\n", "name"),
        ("a,1,1\nb,1,2\n", "none"),
        ("a,0,0\nb,0,0\n", "none"),  # refused when the matrix is read
        ("a,many,0\nb,many,0\n", "none"),
    ],
)
def test_rows_of_a_matrix_are_equal_by_their_shares(tmp_path: Path, rows: str, prefix: str) -> None:
    (tmp_path / "own.csv").write_text(f"task,x,y\n{rows}")
    own = [f"router.matrix={tmp_path / 'own.csv'}", "skills.n_skills=per_column"]
    assert load_config("crossfit.yaml+router/expert.yaml", own).data.prefix == prefix


def test_tasks_made_of_the_same_are_told_apart_by_their_names() -> None:
    """Of factors that are written down; those of TASKS.csv are not read with the settings."""
    for second, prefix in (("[x=2, y=1]", "name"), ("[y=1, x=1]", "none")):
        table = f"router.factors={{a: [y=1, x=2], b: {second}}}"
        config = load_config("crossfit.yaml+data/grid.yaml+router/metadata_grid.yaml", [table])
        assert config.data.prefix == prefix
    default = load_config("crossfit.yaml+data/grid.yaml+router/metadata_grid.yaml")
    assert default.data.prefix == "none"
    for table in ("{a: null}", "{a: true}", "{a: [[x], [y]]}", "{a: [{x: 1}]}", "5"):
        with pytest.raises(ConfigError, match=r"router\.factors"):
            load_config("crossfit.yaml+router/metadata_grid.yaml", [f"router.factors={table}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  dir: a\n  dir: b\n", r'f.yaml: line 3: found duplicate key "dir"$'),
        ("data: {dir: x\n", r"f.yaml: line 2: expected ',' or '}'"),
        ("data: {dir: !foo x}", r"f.yaml: line 1: could not determine a constructor"),
        ("- 1", r"f.yaml: must contain sections with settings, not \[1\]"),
        ("3", "f.yaml: must contain sections with settings, not 3"),
        ("data:\n", "f.yaml: section 'data' must contain settings, not null"),
        ("data: [1]\n", r"f.yaml: section 'data' must contain settings, not \[1\]"),
        ("run: {name: a\x00b}", r"^f.yaml: unacceptable character #x0000"),
        ("\udcff\udcfe", r"'f.yaml' must be UTF-8 text; byte 1"),
    ],
)
def test_malformed_files(write: Writer, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "must have the form section.key")
            for text in ("data", "data=3", "data.=3", ".x=3")
        ),
        ("data.dir=[a", "line 1: expected ',' or ']'"),
    ],
)
def test_the_form_of_an_override(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"-k {text}: {message}")):
        load_config("crossfit.yaml", [text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datta: {dir: x}", "f.yaml: datta: the configuration has no setting 'datta'. Did"),
        ("data: {batchsize: 3}", "f.yaml: data.batchsize: section 'data' has no setting 'batch"),
        ("optim: {zzz: 3}", "f.yaml: optim.zzz: section 'optim' has no setting 'zzz'. Its"),
        ("router: {kind: null}", "router.kind: "),
        ("router: {kind: polytropn}", "f.yaml: router.kind: 'polytropn' must be one of polytropon"),
        ("data: {split: trein}", "f.yaml: data.split: 'trein' must be one of train, train+dev"),
        ("data: {sampler: uniform}", "data.sampler: 'uniform' must be a mapping of settings"),
        ("data: {samples: 100}", "f.yaml: data.samples: '100' must be a list"),
        ("data: {samples: [a]}", "f.yaml: data.samples.0: 'a' must be a whole number"),
        ("run: {name: 3}", "f.yaml: run.name: '3' must be text (quote it if"),
        ("optim: {lr: '1e-3'}", "f.yaml: optim.lr: '1e-3' must be a number"),
        ("backbone: {kind: random, model_type: t5, config: 3}", "f.yaml: backbone.config: '3'"),
    ],
)
def test_mistakes_name_file_key_value_and_alternatives(write, text, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(write(text))
    assert "pydantic" not in str(caught.value)
    assert "http" not in str(caught.value)


def test_all_mistakes_are_told_at_once_with_their_sources(write: Writer) -> None:
    names = write("data: {n_workers: -1}\noptim: {lr: -1, bogus: 2}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(names, ["run.seed=-3"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("-k: run.seed: '-3' must be")
    assert all(line.startswith("f.yaml: ") for line in lines[1:])


@pytest.mark.parametrize("name", ["crossfit", "crossfit_paper", "crossfit+router/polytropon_ibp"])
def test_what_is_written_reads_back(write: Writer, name: str) -> None:
    write("")
    config = load_config(name)
    Path("resolved.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config("resolved.yaml") == config


SHIPPED = load_config("crossfit.yaml").model_dump()


# "1e-3", "08" and "no" are text to one version of YAML and something else to the other.
@given(
    st.sampled_from(
        ["1e-3", "08", "no", "true", "~", "null", "1:30", ".5", "0x1f", "é", "=", "<<", "1_0"]
    )
    | st.text(alphabet="aé01eE+-.:#'\" yn~", min_size=1, max_size=6)
)
def test_text_reads_back_as_text(text: str) -> None:
    data = SHIPPED["data"] | {"dir": text}
    config = load_module.Config.model_validate(SHIPPED | {"data": data})
    assert load_module.yaml12.parse(dump_config(config))["data"]["dir"] == text


def test_an_empty_mapping_empties_a_setting_and_no_section() -> None:
    config = load_config("crossfit.yaml+backbone/tiny_t5.yaml", ["backbone.initial_scale={}"])
    assert config.backbone.initial_scale == {}
    assert merge({"a": {"b": 1}}, {"a": {}}, "x", {}) == {"a": {"b": 1}}


def test_a_list_of_kinds_is_short_for_several(tmp_path: Path) -> None:
    """Settings of the kind below mean nothing to it; sizes can be said for all."""
    path = tmp_path / "listed.yaml"
    path.write_text("skills:\n  - {kind: lora, rank: 2}\n  - {kind: norm}\n")
    listed = load_config(f"crossfit.yaml+{path}", ["skills.n_skills=3"])
    kinds = "[{kind: lora, rank: 2}, {kind: norm}]"
    long = ["skills.kind=several", f"skills.kinds={kinds}", "skills.n_skills=3"]
    assert listed.skills == load_config("crossfit.yaml", long).skills
    assert listed.skills.n_skills == 3
    path.write_text("skills:\n  - {kind: lora, rank: 2, rankk: 3}\n  - {kind: norm}\n")
    with pytest.raises(ConfigError, match=r"listed.yaml: skills.kinds.0.*rankk"):
        load_config(f"crossfit.yaml+{path}")
    path.write_text("skills:\n  - {kind: lora}\n")
    with pytest.raises(ConfigError, match=r"skills.kinds: .*at least 2"):
        load_config(f"crossfit.yaml+{path}")
