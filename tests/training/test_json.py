"""JSON: what is not finite becomes null, and files of older versions are read."""

import json
import math

import pytest

from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn._support.json import from_json, to_json, with_nan
from rotrnn.training.run import Run


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


VALUE = {
    "loss": math.nan,
    "inner": [1.5, math.inf, {"low": -math.inf}],
    "pair": (1, math.nan),
    "text": "NaN",
    "none": None,
}
PLAIN = {"loss": None, "inner": [1.5, None, {"low": None}], "pair": [1, None], "text": "NaN", "none": None}


def test_what_is_not_finite_is_null():
    assert json.loads(to_json(VALUE), parse_constant=refuse) == PLAIN
    assert to_json({"b": 1, "a": 0.1}, sort_keys=True) == json.dumps({"b": 1, "a": 0.1}, sort_keys=True)
    back = with_nan(from_json(to_json([1, None, {"a": None}])))
    assert back[0] == 1
    assert math.isnan(back[1])
    assert math.isnan(back[2]["a"])


def test_depth_is_limited():
    assert from_json("[" * 32 + "]" * 32)
    for depth in (33, 200, 100_000):
        with pytest.raises(ValueError, match="nested more than 32 deep"):
            from_json("[" * depth + "]" * depth)


@pytest.mark.parametrize("write", [to_json, json.dumps], ids=["now", "older"])
def test_the_files_of_a_run_that_diverged(tmp_path, write):
    run = Run(tmp_path)
    test = {"best": {"loss": math.inf, "accuracy": 0.5}, "last": {"loss": math.nan, "accuracy": 0.25}}
    result = {"metric": "accuracy", "selected_on": "validation", "best_step": 1, "test": test}
    run.write(run.result, write(result))
    found = run.read_json(run.result)
    assert not math.isfinite(found["test"]["best"]["loss"])
    assert math.isnan(found["test"]["last"]["loss"])
    assert found["test"]["last"]["accuracy"] == 0.25
    records = [{"step": 1, "loss": 2.0}, {"step": 1, "val_loss": math.nan, "state_norms": [1.0, math.inf]}]
    run.write(run.log, "".join(write(one) + "\n" for one in records))
    assert math.isnan(run.records()[1]["val_loss"])
    in_other_order = dict(reversed(records[1].items()))  # as a checkpoint has them
    run.cut_log(1, [in_other_order, {"step": 2, "loss": None}])  # a record that the log has is not added again
    text = run.log.read_text(encoding="utf-8")
    assert [json.loads(line, parse_constant=refuse).get("val_loss", 0) for line in text.splitlines()] == [0, None, 0]
    run.cut_log(2)
    assert run.log.read_text(encoding="utf-8") == text
    write_checkpoint(run.checkpoint("last"), {}, {"step": 1, "unlogged": records})
    _, facts = read_checkpoint(run.checkpoint("last"))
    assert facts["unlogged"][1]["val_loss"] is None


def test_sessions_keep_what_is_unknown(tmp_path):
    run = Run(tmp_path)
    run.add_session({"commit": None, "started": "now"})
    run.add_session({"commit": None})
    assert run.read_json(run.sessions) == [{"commit": None, "started": "now"}, {"commit": None}]
