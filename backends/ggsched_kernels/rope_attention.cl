/* attention_blocks with ROPE, behind rope_kv_write.cl: a group first rotates and copies what it then reads. */
