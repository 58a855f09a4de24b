# SPDX-License-Identifier: Apache-2.0
"""vLLM's settings that leave the bytes of a block as they are. All others are in the record of a model
if they are not as they are by default, those that are not known here included."""

from __future__ import annotations

from typing import Any

from .._facts import digest
from .._settings import changed, environment

# No field of these counts: they concern scheduling, transports, logs, places of weights, and compilation,
# which rounds otherwise. `quant_config` is made of others that count.
_SECTIONS = """
    aux_output_config compilation_config device_config ec_manager_config ec_transfer_config engram_config
    instance_id kv_events_config kv_transfer_config logging_config observability_config offload_config
    optimization_level performance_mode profiler_config quant_config reasoning_config scheduler_config
    shutdown_timeout structured_outputs_config watchdog_config watermark_config weight_transfer_config
    """.split()

# The record has these by themselves, or has what comes of them: configuration, weights, specs of layers.
_TOLD = {
    "model_config": """
        config_format convert hf_config hf_config_path hf_overrides hf_text_config is_submodel_config
        max_model_len model model_weights override_generation_config revision runner
        spec_target_max_model_len word_embeddings_untied_by_checkpoint
        """.split(),
    "multimodal_config": ["mm_processor_kwargs"],
    "cache_config": """
        block_size cache_dtype kv_cache_layout mamba_block_size mamba_cache_dtype mamba_page_size_padded
        mamba_ssm_cache_dtype prefix_caching_hash_algo skip_page_size_padded sliding_window
        """.split(),
    "parallel_config": """
        decode_context_parallel_size pipeline_parallel_size prefill_context_parallel_size
        tensor_parallel_size
        """.split(),
    "load_config": ["load_format"],
    "attention_config": ["backend"],
    "speculative_config": "draft_tensor_parallel_size method revision tensor_parallel_size".split(),
}

# These concern memory, batches, scheduling, tokens, sampling and transports, and choose one of several kernels.
_HARMLESS = {
    "model_config": """
        allow_deprecated_quantization allowed_local_media_path allowed_media_domains disable_cascade_attn
        enable_cumem_allocator enable_nccl_comm_suspend enable_prompt_embeds enable_sleep_mode
        enable_trace_replay enforce_eager generation_config hf_token io_processor_plugin logits_processors
        logprobs_mode max_logprobs pooler_config renderer_num_workers return_sampling_mask seed
        served_model_name skip_tokenizer_init sleep_mode_backend sleep_mode_offload_cudagraph
        sleep_preserve_parameter_names tokenizer tokenizer_mode tokenizer_revision trust_remote_code
        use_fp64_gumbel
        """.split(),
    "multimodal_config": """
        allow_missing_mm_embeddings enable_mm_embeds interleave_mm_strings language_model_only
        limit_per_prompt mm_encoder_attn_backend mm_encoder_fp8_scale_save_margin
        mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm
        mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb
        mm_tensor_ipc skip_mm_profiling
        """.split(),
    "cache_config": """
        _block_size_resolved cache_hit_alignment_tokens effective_attention_block_size
        enable_mamba_shared_prefix_checkpoint enable_prefix_caching gpu_memory_utilization hash_block_size
        is_attention_free kv_cache_max_concurrency kv_cache_memory_bytes kv_cache_size_tokens
        kv_offloading_backend kv_offloading_size mamba_cache_mode num_cpu_blocks num_gpu_blocks
        num_gpu_blocks_override prefix_cache_retention_interval prefix_match_unit simple_cpu_offload_num_blocks
        use_kda_recoverssm user_specified_block_size user_specified_mamba_block_size
        """.split(),
    "parallel_config": """
        _allow_auto_resolve_cp_interleave_size _api_process_count _api_process_rank _coord_store_port
        _data_parallel_master_port_list all2all_backend assigned_physical_gpu_ids
        cpu_distributed_timeout_seconds data_parallel_backend data_parallel_external_lb
        data_parallel_hybrid_lb data_parallel_index data_parallel_master_ip data_parallel_master_port
        data_parallel_rank data_parallel_rank_local data_parallel_rpc_port data_parallel_size
        data_parallel_size_local dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend
        dcp_q_replicate disable_custom_all_reduce disable_nccl_for_dp_synchronization
        distributed_executor_backend distributed_timeout_seconds dp_sync_interval elastic_ep_max_dp_size
        enable_batch_sharded_sampling enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb
        enable_expert_parallel enable_fault_tolerance enable_hc_sp enable_shm_tensor_arena eplb_config
        expert_placement_strategy fault_tolerance_config is_moe_model master_addr master_port
        max_parallel_loading_workers nnodes node_rank numa_bind numa_bind_cpus numa_bind_nodes
        placement_group rank ray_runtime_env ray_workers_use_nsight sd_worker_cls ubatch_size worker_cls
        worker_extension_cls world_size
        """.split(),
    "load_config": """
        device download_dir pt_load_map_location safetensors_load_strategy
        safetensors_prefetch_block_size safetensors_prefetch_num_threads use_tqdm_on_load
        """.split(),
    "attention_config": """
        flash_attn_max_num_splits_for_cuda_graph flash_attn_version flex_attn_block_m flex_attn_block_n
        flex_attn_kv_block_size flex_attn_q_block_size mla_prefill_backend sparse_mla_prefill_workspace_factor
        indexer_tp_shard_min_rows minimax_m3_indexer_cp tokenspeed_mla_min_split_kv
        tq_max_kv_splits_for_cuda_graph trtllm_ragged_backend
        """.split(),
    "kernel_config": """
        enable_cutedsl_warmup enable_flashinfer_autotune enable_jit_warmup
        enable_rocm_segmented_attn_autotune ir_op_priority monokernel sparse_indexer_topk_backend
        """.split(),
    "lora_config": """
        default_mm_loras fully_sharded_loras lora_dtype max_cpu_loras max_lora_cls_labels max_lora_rank
        max_loras specialize_active_lora
        """.split(),
    "speculative_config": """
        disable_eagle_block_drop disable_padded_drafter_batch draft_lm_head_quantization
        draft_parallel_config draft_sample_method dspark_draft_topk enable_adaptive_verification
        enforce_eager fly_entropy_threshold fly_entropy_top_k fly_window_size max_model_len
        num_speculative_tokens num_speculative_tokens_per_batch_size prompt_lookup_max prompt_lookup_min rejection_sample_method
        suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth
        suffix_decoding_min_token_prob synthetic_acceptance_length synthetic_acceptance_rates
        target_model_config target_parallel_config use_local_argmax_reduction
        xpress_topc
        """.split(),
}

#: As `changed` takes them.
LISTS: dict[str, frozenset[str]] = {
    name: frozenset([*_TOLD.get(name, ()), *_HARMLESS[name]]) for name in _HARMLESS
}
LISTS |= {
    "": frozenset(_SECTIONS),
    "draft_load_config": LISTS["load_config"],
    "draft_model_config": LISTS["model_config"],
    "model_config": LISTS["model_config"] | {"dtype", "quantization"},
}


def settings_digest(engine: Any) -> str:
    """Digests the settings of a VllmConfig, and of this process, that decide the bytes of a block and have no
    fact of their own; "" if all are as they are by default."""
    from vllm import envs

    told = changed(engine, LISTS)
    variables = environment("VLLM_", envs.environment_variables)
    if variables.get("VLLM_SSM_CONV_STATE_LAYOUT") == "SD":
        del variables["VLLM_SSM_CONV_STATE_LAYOUT"]  # the default, which vLLM itself sets on CPUs
    if variables:
        told["environment"] = variables
    return digest(told) if told else ""
