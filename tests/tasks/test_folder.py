import re

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
        assert gym.shots(task) == 32
        assert gym.rows(task, "train", 13)[1] == Row(f"{task} train 13 1", ("answer 1", "other 1"))


def test_a_missing_folder_says_what_builds_it(tmp_path):
    with pytest.raises(TaskError, match="does not exist") as error:
        Gym(tmp_path / "none")
    assert "python scripts/gyms/build_lexical.py" in str(error.value)
    assert "mttl build" in str(error.value)


def test_a_folder_without_tasks(tmp_path):
    with pytest.raises(TaskError, match=r"holds no task.*<task>_<k>_<sample>_train.tsv"):
        Gym(tmp_path)


def test_an_unknown_task_names_the_nearest(make_gym):
    gym = make_gym({"past_tense": 2, "plural": 2})
    with pytest.raises(TaskError, match=r"no task 'past_tens'. Did you mean 'past_tense'\?"):
        gym.samples("past_tens")


def test_a_missing_split_lists_those_present(make_gym):
    gym = make_gym({"one": 2})
    (gym.directory / "one" / "one_16_100_dev.tsv").unlink()
    with pytest.raises(TaskError, match=r"no dev file for sample 100 .*present: train, test"):
        Gym(gym.directory).rows("one", "dev", 100)


def test_two_files_of_one_sample(make_gym):
    gym = make_gym({"one": 2})
    (gym.directory / "one" / "one_32_100_train.tsv").write_text("a\tb\n")
    with pytest.raises(TaskError, match=r"two train files for sample 100.*one_16_100.*one_32_100"):
        Gym(gym.directory).tasks()


def test_files_of_several_k(make_gym):
    gym = make_gym({"one": 2})
    (gym.directory / "one" / "one_32_21_train.tsv").write_text("a\tb\n")
    with pytest.raises(TaskError, match=r"task 'one' has files of several k \(16, 32\)"):
        Gym(gym.directory).shots("one")


def test_files_of_all_rows_name_no_number(make_gym):
    gym = make_gym({"one": 2})
    for path in list((gym.directory / "one").iterdir()):
        path.rename(path.with_name(path.name.replace("_16_", "_all_")))
    gym = Gym(gym.directory)
    assert gym.shots("one") is None
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


def test_a_malformed_file_is_named(make_gym):
    gym = make_gym({"one": 2})
    path = gym.directory / "one" / "one_16_100_train.tsv"
    path.write_text("a\tb\nbroken\n")
    with pytest.raises(TaskError, match=re.escape(f"{path}, line 2: no tab")):
        gym.rows("one", "train", 100)


def test_metric_and_description_come_from_the_table_first(make_gym):
    table = 'task,metric,description\none,EM,"Say one, please."\ntwo,,\n'
    gym = make_gym({"one": 2, "boolq": 2}, table=table)
    assert gym.metric("one") == "EM"
    assert gym.description("one") == "Say one, please."
    # Absent from the table: the built-in one of CrossFit's tasks.
    assert gym.metric("boolq") == "ACC"
    assert gym.description("boolq") is None
    assert gym.description("two") is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name,metric\n", 'have the columns task, metric, .* its header is "name,metric"'),
        ("task,metric\none,EM\none,ACC\n", "TASKS.csv, line 3: 'one' is there twice"),
        ("task,metric,description\none,EM,Say, please\n", "line 2: 4 cells; the header has 3"),
    ],
)
def test_a_malformed_table(make_gym, table, message):
    with pytest.raises(TaskError, match=message):
        make_gym({"one": 2}, table=table).metric("one")
