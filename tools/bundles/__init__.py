"""Random model bundles of the family with reference results: what tools/make_bundle.py is made of.

    containers   safetensors and GGUF files: streaming writers, small readers
    blocks       GGUF block formats: geometry, random blocks, decoding
    family       shapes of the models, their tensors, and the same weights under every name and layout files use
    reference    the forward pass in float64: slow, obvious, independent of the C++ sources
    drafters     DFlash 1, DSpark and DFlash 2: tensors, files, reference results
    vision       the image tower: tensors, files, reference results
    text         a tiny tokenizer, a chat template, an encoder to check against
    tiny         the golden set that tests read
    big          benchmark bundles of any size, streamed to disk

Needs numpy and the standard library. Formulas: docs/model.md."""
