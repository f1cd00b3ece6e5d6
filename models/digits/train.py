"""Trains the `digits` model from scikit-learn's digits and writes every file of this folder that git holds.

    python -m venv /tmp/digits
    /tmp/digits/bin/pip install tensorflow-cpu==2.21.0 scikit-learn==1.9.1 onnx==1.23.0 onnxruntime==1.32.0
    /tmp/digits/bin/python models/digits/train.py

Needs two minutes on one core. With the same versions on the same kind of CPU it writes the same bytes; it ends by
printing accuracy, sha256 and size of each file for `model.toml`.
"""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import tensorflow as tf
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from sklearn.datasets import load_digits

FOLDER = Path(__file__).resolve().parent
SEED = 20240229
EVALUATION_COUNT = 360
CALIBRATION_COUNT = 64
EPOCHS = 80


def main() -> None:
    tf.keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    (train_x, train_y), (test_x, test_y) = split()
    network = train(train_x, train_y)
    save_npz(FOLDER / "calibration.npz", train_x[:CALIBRATION_COUNT], train_y[:CALIBRATION_COUNT])
    save_npz(FOLDER / "evaluation.npz", test_x, test_y)
    onnx.save(to_onnx(network), FOLDER / "digits.onnx")
    quantize_onnx(train_x[:CALIBRATION_COUNT])
    (FOLDER / "digits.tflite").write_bytes(to_litert(network, None))
    (FOLDER / "digits-int8.tflite").write_bytes(to_litert(network, train_x[:CALIBRATION_COUNT]))
    report(test_x, test_y)


def split():
    """((n, 8, 8, 1) float32 in 0..1, (n,) labels), for training and, held out, for evaluation."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    cut = len(labels) - EVALUATION_COUNT
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def train(images, labels):
    layers = tf.keras.layers
    network = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(24, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Dropout(0.2),
            layers.Conv2D(24, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    rate = tf.keras.optimizers.schedules.CosineDecay(3e-3, EPOCHS * (len(labels) // 32 + 1))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(tf.keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    network.fit(images, labels, batch_size=32, epochs=EPOCHS, verbose=0)
    return network


def save_npz(path, images, labels):
    np.savez_compressed(path, image=images, labels=labels)


def to_onnx(network):
    """The same weights as ONNX, with LiteRT's input: `image` (1, 8, 8, 1) -> `logits` (1, 10)."""
    weights = [w.numpy() for w in network.weights]
    nodes = [helper.make_node("Reshape", ["image", "planes"], ["x0"])]
    stored = [numpy_helper.from_array(np.array([1, 1, 8, 8], np.int64), "planes")]
    for i in range(3):
        # Keras: (height, width, in, out); ONNX: (out, in, height, width).
        kernel, bias = weights[2 * i].transpose(3, 2, 0, 1), weights[2 * i + 1]
        stored += [numpy_helper.from_array(np.ascontiguousarray(kernel), f"kernel{i}")]
        stored += [numpy_helper.from_array(bias, f"bias{i}")]
        conv = helper.make_node("Conv", [f"x{i}", f"kernel{i}", f"bias{i}"], [f"c{i}"], pads=[1, 1, 1, 1])
        after = f"x{i + 1}" if i == 0 else f"r{i}"
        nodes += [conv, helper.make_node("Relu", [f"c{i}"], [after])]
        if i:
            nodes += [helper.make_node("MaxPool", [after], [f"x{i + 1}"], kernel_shape=[2, 2], strides=[2, 2])]
    # Keras flattens (2, 2, 24), ONNX flattens (24, 2, 2).
    dense = weights[6].reshape(2, 2, 24, 10).transpose(2, 0, 1, 3).reshape(96, 10)
    stored += [numpy_helper.from_array(np.ascontiguousarray(dense), "dense")]
    stored += [numpy_helper.from_array(weights[7], "dense_bias")]
    nodes += [helper.make_node("Flatten", ["x3"], ["flat"])]
    nodes += [helper.make_node("Gemm", ["flat", "dense", "dense_bias"], ["logits"])]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 8, 8, 1])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "digits", [image], [logits], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "edgekit models/digits/train.py"
    onnx.checker.check_model(model, full_check=True)
    return model


class Images(CalibrationDataReader):
    def __init__(self, images):
        self.feeds = iter([{"image": image[None]} for image in images])

    def get_next(self):
        return next(self.feeds, None)


def quantize_onnx(images):
    quantize_static(
        FOLDER / "digits.onnx",
        FOLDER / "digits-int8.onnx",
        Images(images),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def to_litert(network, calibration):
    """The LiteRT file; INT8 inside with float inputs and outputs when there is calibration data."""
    weights = [w.numpy() for w in network.weights]

    # Written out over constants: the converter would keep Keras's variables as variables.
    class Digits(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 1], tf.float32, name="image")])
        def serve(self, image):
            x = image
            for i in range(3):
                x = tf.nn.relu(tf.nn.conv2d(x, weights[2 * i], 1, "SAME") + weights[2 * i + 1])
                x = tf.nn.max_pool2d(x, 2, 2, "VALID") if i else x
            return {"logits": tf.matmul(tf.reshape(x, [1, 96]), weights[6]) + weights[7]}

    module = Digits()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module)
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None]] for image in calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return converter.convert()


def report(images, labels):
    for path in sorted(FOLDER.glob("digits*.onnx")):
        session = InferenceSession(path)
        right = [session.run(None, {"image": x[None]})[0].argmax() == y for x, y in zip(images, labels, strict=True)]
        print(f"{path.name}: top-1 {np.mean(right):.4f} of {len(right)}")
    for path in sorted(FOLDER.glob("digits*.tflite")):
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        right = [runner(image=x[None])["logits"].argmax() == y for x, y in zip(images, labels, strict=True)]
        print(f"{path.name}: top-1 {np.mean(right):.4f} of {len(right)}")
    for path in sorted([*FOLDER.glob("digits*.*"), *FOLDER.glob("*.npz")]):
        data = path.read_bytes()
        print(f"{path.name}: sha256 {hashlib.sha256(data).hexdigest()}, {len(data)} bytes")


if __name__ == "__main__":
    main()
