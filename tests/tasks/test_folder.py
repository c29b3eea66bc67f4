import shutil

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.folder import Gym
from mttl.tasks.rows import Row

ODD_NAMES = ["blimp-ellipsis_n_bar_1", "dbpedia_14", "ade_corpus_v2-dosage", "a_1_2_train"]


def test_names_with_digits_and_underscores_are_parsed_from_the_end(make_gym):
    gym = make_gym(dict.fromkeys(ODD_NAMES, 2), k=32)
    assert gym.tasks() == sorted(ODD_NAMES)
    for task in ODD_NAMES:
        assert gym.samples(task) == [13, 100]
        assert gym.rows(task, "train", 13)[1] == Row(f"{task} train 13 1", ("answer 1", "other 1"))


def add(gym, name, text="a\tb\n"):
    (gym.directory / "one" / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "use", "message"),
    [
        (lambda gym: gym.directory.rename(gym.directory.with_name("other")), Gym.tasks,
         r"does not exist.*`mttl build`.*python scripts/gyms/build_lexical\.py"),
        (lambda gym: shutil.rmtree(gym.directory / "one"), Gym.tasks,
         r"has no task.*<task>_<k>_<sample>_train.tsv"),
        (lambda gym: None, lambda gym: gym.samples("ones"),
         r"no task 'ones'. Did you mean 'one'\?"),
        (lambda gym: gym.file("one", "dev", 100).unlink(), lambda gym: gym.rows("one", "dev", 100),
         r"no dev file for sample 100 .*present: train, test"),
        (lambda gym: None, lambda gym: gym.rows("one", "dev", 7),
         r"no sample 7 in .*present: 13, 100"),
        (lambda gym: add(gym, "one_32_100_train.tsv"), Gym.tasks,
         r"two train files for sample 100.*one_16_100.*one_32_100"),
        (lambda gym: add(gym, "one_16_100_train.tsv", "a\tb\nbroken\n"),
         lambda gym: gym.rows("one", "train", 100), "one_16_100_train.tsv, line 2: no tab"),
        (lambda gym: None, lambda gym: gym.metric("one"),
         r"task 'one' is unknown.*TASKS\.csv"),
        (lambda gym: None, lambda gym: gym.metric("bool_q"),
         r"task 'bool_q' is unknown.*Did you mean 'boolq'.*TASKS\.csv"),
        (lambda gym: gym.table.write_text("name,metric\n"), lambda gym: gym.metric("one"),
         'have the columns task, metric, .* its header is "name,metric"'),
        (lambda gym: gym.table.write_text("task,metric\none,EM\none,ACC\n"),
         lambda gym: gym.metric("one"), "TASKS.csv, line 3: the task 'one' occurs twice"),
    ],
)  # fmt: skip
def test_mistakes(make_gym, damage, use, message):
    gym = make_gym({"one": 2})
    damage(gym)
    with pytest.raises(TaskError, match=message):
        use(Gym(gym.directory))


def test_files_of_all_rows_name_no_number(make_gym):
    gym = make_gym({"one": 2})
    for path in list((gym.directory / "one").iterdir()):
        path.rename(path.with_name(path.name.replace("_16_", "_all_")))
    gym = Gym(gym.directory)
    assert len(gym.rows("one", "dev", 13)) == 4


def test_a_digest_is_of_one_sample_and_its_metric(make_gym):
    gym = make_gym({"blimp-one": 2}, table="task,metric\nblimp-one,ACC\n")
    first, second = gym.digest("blimp-one", 13), gym.digest("blimp-one", 100)
    assert first != second
    path = gym.directory / "blimp-one" / "blimp-one_16_100_test.tsv"
    path.write_text("a\tb\n")
    assert gym.digest("blimp-one", 13) == first
    assert gym.digest("blimp-one", 100) != second
    assert Gym(gym.directory, {"blimp-one": "EM"}).digest("blimp-one", 13) != first


def test_metric_and_description_come_from_the_table_first(make_gym):
    table = 'task,metric,description\none,EM,"Say one, please."\ntwo,,\n'
    gym = make_gym({"one": 2, "boolq": 2}, table=table)
    assert gym.metric("one") == "EM"
    assert gym.description("one") == "Say one, please."
    # Absent from the table: the built-in one of CrossFit's tasks.
    assert gym.metric("boolq") == "ACC"
    assert gym.description("boolq") is None
    assert gym.description("two") is None
