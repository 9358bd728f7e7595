"""Tiny files of formats that weft does not read, each by its own library: tests/weights/sources/test_foreign.py.

Each needs its library: onnx, coremltools, h5py, torch. Those that are not installed are left out.

    python tests/golden/weights/make_foreign.py [onnx coreml hdf5 torch]
"""

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402


def onnx() -> None:
    from onnx import TensorProto, helper, save

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", tensors[:1], tensors[1:])
    save(helper.make_model(graph, producer_name="weft-tests", producer_version="1"), HERE / "tiny.onnx")
    note_versions(HERE / "tiny.onnx", "onnx")


def coreml() -> None:
    from coremltools.models import MLModel, datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    shape = datatypes.Array(2)
    builder = NeuralNetworkBuilder([("x", shape)], [("y", shape)])
    builder.add_activation("relu", "RELU", "x", "y")
    MLModel(builder.spec, skip_model_load=True).save(str(HERE / "tiny.mlmodel"))
    note_versions(HERE / "tiny.mlmodel", "coremltools")


def hdf5() -> None:
    import h5py

    with h5py.File(HERE / "tiny.h5", "w", libver="latest") as file:
        file["w"] = [1.0, 2.0]
    note_versions(HERE / "tiny.h5", "h5py")


def torch() -> None:
    import torch

    state = {"w": torch.ones(2)}
    torch.save(state, HERE / "tiny.pt")
    torch.save(state, HERE / "tiny-legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.script(torch.nn.ReLU()).save(str(HERE / "tiny-script.pt"))
    for name in ("tiny.pt", "tiny-legacy.pt", "tiny-script.pt"):
        note_versions(HERE / name, "torch")


MAKERS: dict[str, Callable[[], None]] = {"onnx": onnx, "coreml": coreml, "hdf5": hdf5, "torch": torch}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        try:
            MAKERS[name]()
        except ImportError as error:
            print(f"{name} is left out: {error}")
