"""Hyperparameters of a llama in the metadata of a GGUF file."""

from gguf import GGUFWriter

from ggsched_llm.hparams import HParams


def add_sizes(writer: GGUFWriter, hp: HParams) -> None:
    """Add what every file of a model without a vocabulary says of its sizes."""
    writer.add_name(hp.name)
    writer.add_context_length(hp.n_ctx_train)
    writer.add_embedding_length(hp.n_embd)
    writer.add_block_count(hp.n_layer)
    writer.add_feed_forward_length(hp.n_ff)
    writer.add_head_count(hp.n_head)
    writer.add_head_count_kv(hp.n_head_kv)
    writer.add_key_length(hp.head_dim)
    writer.add_value_length(hp.head_dim)
    writer.add_rope_dimension_count(hp.rope.n_dims)
    writer.add_rope_freq_base(hp.rope.base)
    writer.add_layer_norm_rms_eps(hp.norm_eps)
    writer.add_vocab_size(hp.n_vocab)


def finish(writer: GGUFWriter) -> None:
    """Write what was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
