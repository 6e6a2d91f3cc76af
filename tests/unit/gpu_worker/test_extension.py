import msgspec
import pytest

from broker.errors import ConfigurationError, InvalidRequestError
from gpu_worker.extension import Extension, ExtensionContext


class Point(msgspec.Struct):
    x: int = 0


class Commands:
    secret = 7

    def __init__(self, context):
        self.context = context

    def add(self, first: int, second: float = 1) -> float:
        return first + second

    def repeat(self, text: str, times=2):
        return text * times

    def point(self, at: Point) -> Point:
        return at

    def thing(self):
        return object

    def give(self, code: str):
        return eval(code, {"nan": float("nan")})

    @property
    def loaded(self):
        raise AssertionError("nobody asked for it")

    @staticmethod
    def still():
        return "static"

    @classmethod
    def kind(cls):
        return cls.__name__

    def model(self):
        return self.context.model

    def _private(self):
        raise AssertionError


@pytest.fixture
def engines():
    return []


@pytest.fixture
def extension(engines):
    context = ExtensionContext("gpu0@host", lambda: engines[0] if engines else None)
    return Extension(f"{__name__}:Commands", context)


@pytest.mark.parametrize(
    ("method", "arguments", "result"),
    [
        ("add", ["first=2", "second=0.5"], 2.5),
        ("add", ["first=2"], 3),
        ("add", ['first="2"'], 3),
        ("repeat", ["text=5", "times=3"], "555"),
        ("repeat", ["text=a=b"], "a=ba=b"),
        ("point", ['at={"x": 3}'], {"x": 3}),
        ("thing", [], "<class 'object'>"),
        ("give", ["code=[nan, b'1', {1: 2}]"], [None, "MQ==", {"1": 2}]),
        ("give", ["code={(1, 2): 3}"], "{(1, 2): 3}"),
        ("give", ["code=2**80"], 2**80),
        ("give", ["code='\\ud800'"], "'\\ud800'"),
        ("still", [], "static"),
        ("kind", [], "Commands"),
    ],
)
def test_arguments_become_what_the_method_says_and_results_what_json_can_hold(extension, method, arguments, result):
    assert extension.bind(method, arguments)() == result


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("_private", [], "it has add, give, kind, model, point, repeat, still, thing"),
        ("secret", [], "has no method 'secret'"),
        ("context", [], "has no method 'context'"),
        ("add", [], "missing a required argument: 'first'"),
        ("add", ["first=two"], "Expected `int`"),
        ("add", ["first=1", "third=1"], "unexpected keyword argument 'third'"),
        ("add", ["first"], "'first' is not key=value"),
    ],
)
def test_a_call_that_cannot_be_is_refused_before_it_is_made(extension, method, arguments, why):
    with pytest.raises(InvalidRequestError, match=why):
        extension.bind(method, arguments)


def test_the_model_is_that_of_the_engine_of_the_moment(extension, engines):
    call = extension.bind("model", [])
    with pytest.raises(LookupError, match="being loaded or worked on"):
        call()
    engines.append(type("Engine", (), {"model": "the model"}))
    assert call() == "the model"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing:Class", "No module named 'nothing'"),
        (f"{__name__}:Nobody", "no attribute 'Nobody'"),
        ("no-colon", "give it as package.module:Class"),
        (":Class", "give it as package.module:Class"),
        ("module:", "give it as package.module:Class"),
    ],
)
def test_a_class_that_is_not_there_is_a_wrong_setting(path, why):
    with pytest.raises(ConfigurationError, match=f"worker_extension_cls=.*{why}"):
        Extension(path, ExtensionContext("gpu0@host", lambda: None))
