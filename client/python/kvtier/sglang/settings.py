# SPDX-License-Identifier: Apache-2.0
"""SGLang's arguments that leave the bytes of a page as they are. All others are in the record of a pool if
they are not as they are by default, those that are not known here included."""

from __future__ import annotations

from typing import Any

from .._facts import digest
from .._settings import changed, environment

# The record has these by themselves, or has what comes of them: names of weights, ranks, sizes of pages.
_TOLD = """
    attn_cp_size attn_dp_size dcp_size lora_paths model_path page_size pp_size revision served_model_name
    speculative_draft_model_path speculative_draft_model_revision tp_size weight_cache_mode
    """.split()

# These size caches, and choose where they lie and how long.
_MEMORY = """
    _radix_eviction_policy_explicitly_set _swa_full_tokens_ratio_explicitly_set cpu_offload_gb
    disable_hybrid_swa_memory disable_radix_cache enable_draft_weights_cpu_backup enable_flexkv
    enable_hierarchical_cache enable_hisparse enable_linker_mla_dedup enable_lmcache enable_memory_saver
    enable_paged_experts enable_session_radix_cache enable_unified_cache_external_linker enable_unified_memory
    enable_weights_cpu_backup flexkv_config_file hicache_host_memory_fraction hicache_host_memory_mode
    hicache_io_backend hicache_mem_layout hicache_ratio hicache_size hicache_storage_backend
    hicache_storage_backend_extra_config hicache_storage_prefetch_policy
    hicache_storage_prefetch_retry_max_attempts hicache_storage_prefetch_retry_poll_interval hicache_write_policy
    hisparse_config int8_mamba_ckpt_size lmcache_config_file mamba_full_memory_ratio mamba_max_states_per_path
    mamba_radix_cache_strategy mamba_track_interval max_mamba_cache_size max_total_tokens mem_fraction_static
    offload_group_size offload_mode offload_num_in_group offload_prefetch_step paged_experts_num_resident
    ple_offload_backend ple_offload_dir ple_offload_embedding prefill_only_disable_kv_cache radix_cache_backend
    radix_eviction_policy radix_eviction_policy_config swa_full_tokens_ratio swa_prefix_tails
    unified_cache_external_linker_backend unified_cache_external_linker_config uses_mamba_radix_cache
    """.split()

# These decide when requests are computed, how many at a time, and by which of several servers.
_SCHEDULING = """
    abort_on_priority_when_disabled chunked_prefill_size context_length decoupled_spec_bind_endpoint
    decoupled_spec_connect_endpoints decoupled_spec_rank decoupled_spec_role default_priority_value
    disable_chunked_prefix_cache disable_overlap_schedule disable_priority_preemption
    disaggregation_bootstrap_port disaggregation_decode_allocation_policy
    disaggregation_decode_enable_offload_kvcache disaggregation_decode_enable_radix_cache
    disaggregation_decode_extra_slots disaggregation_decode_host_receive_threshold
    disaggregation_decode_polling_interval disaggregation_decode_retraction_backup
    disaggregation_enable_kv_checksum disaggregation_ib_device disaggregation_mode
    disaggregation_transfer_backend enable_adaptive_dispatch_to_encoder enable_dynamic_chunking
    enable_mixed_chunk enable_pd_role_switch enable_pdmux enable_prefill_delayer enable_priority_scheduling
    enable_single_batch_overlap enable_two_batch_overlap encoder_bootstrap_port encoder_only
    encoder_register_urls encoder_transfer_backend encoder_urls language_model_only language_only
    max_prefill_tokens max_queued_requests max_running_requests min_free_slots_delay
    num_continuous_decode_steps num_reserved_decode_tokens optimistic_prefill_attempts pdmux_config_path
    prefill_decode_interval prefill_decode_interval_min_bs prefill_delayer_forward_passes_buckets
    prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
    prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets prefill_max_requests
    priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness
    schedule_low_priority_values_first schedule_policy scheduler_recv_interval sm_group_num
    tbo_token_distribution_threshold
    """.split()

# These place processes and ranks, and choose the ways between them. The record has a page's ranks.
_PARALLEL = """
    base_gpu_id boundary_reduction custom_sigquit_handler dcp_comm_backend dcp_replicate_q_proj deepep_config
    deepep_mode deepep_v2_mode device disable_aiter_allreduce_fusion_in_decode
    disable_aiter_allreduce_fusion_in_prefill disable_attn_tp_gather disable_custom_all_reduce dist_init_addr
    dist_timeout dp_size dwdp_size elastic_ep_backend elastic_ep_initial_size elastic_ep_scale_timeout
    enable_aiter_allreduce_fusion enable_attn_tp_input_scattered enable_cp_decode_attn_tp
    enable_cp_tp_group_sharing enable_dense_mlp_attn_tp enable_dp_attention
    enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_elastic_expert_backup enable_eplb
    enable_flashinfer_allreduce_fusion enable_fused_moe_sum_all_reduce enable_layernorm_sp
    enable_megamoe_for_layernorm_sp enable_mscclpp enable_nccl_nvls enable_p2p_check enable_scattered_sconv
    enable_shared_experts_attn_tp enable_symm_mem enable_torch_symm_mem enable_tp_lm_head_all_to_all
    enable_waterfill enforce_disable_flashinfer_allreduce_fusion ep_dispatch_algorithm ep_join_mode
    ep_join_rank_offset ep_num_redundant_experts ep_size eplb_algorithm
    eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk eplb_rebalance_num_iterations
    expert_balancedness_report_mode expert_distribution_recorder_buffer_size expert_distribution_recorder_mode
    flashinfer_allreduce_fusion_backend fuseep_mode gated_launch_port gc_threshold gpu_id_step
    init_expert_location kt_cpuinfer kt_threadpool_count load_balance_method max_ep_size mlx_enable_sampling
    moe_a2a_backend moe_dense_tp_size moe_dp_size mooncake_ib_device nccl_port nnodes node_rank numa_node
    pp_async_batch_depth pp_max_micro_batch_size pre_warm_nccl random_seed shared_experts_tp_size sleep_on_idle
    soft_watchdog_timeout use_ray watchdog_timeout
    """.split()

# These choose one of several kernels, which round in other ways.
_KERNELS = """
    attention_backend bf16_gemm_backend cuda_graph_backend_decode cuda_graph_backend_prefill
    cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_config cuda_graph_max_bs_decode
    cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context debug_cuda_graph
    decode_attention_backend disable_cuda_graph disable_cuda_graph_padding disable_decode_cuda_graph
    disable_flashinfer_autotune disable_prefill_cuda_graph dsa_decode_backend dsa_paged_mqa_logits_backend
    dsa_prefill_backend dsa_topk_backend dsa_triton_union dsv4_attn_backend dsv4_prefill_backend
    enable_amd_monokernel enable_cudagraph_gc enable_dsa_fused_indexer enable_fused_qk_norm_rope
    enable_layerwise_nvtx_marker enable_lean_attention enable_nvidia_megakernel enable_profile_cuda_graph
    enable_torch_compile enable_torch_compile_debug_mode flashinfer_autotune_skip_ops
    flashinfer_mla_disable_ragged linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend
    linear_attn_verify_backend lora_backend mamba_backend mm_attention_backend prefill_attention_backend
    torch_compile_max_bs triton_attention_num_kv_splits triton_attention_reduce_in_fp32
    triton_attention_split_tile_size
    """.split()

# These read weights, and hold adapters and media, which have their names in hashes.
_LOADING = """
    allowed_media_domains checkpoint_engine_wait_weights_before_ready custom_weight_loader
    delete_ckpt_after_loading download_dir enable_broadcast_mm_inputs_process enable_lora
    enable_lora_overlap_loading enable_mm_global_cache enable_multimodal enable_prefix_mm_cache
    engine_info_bootstrap_port limit_mm_data_per_request lora_drain_wait_threshold lora_eviction_policy
    lora_use_virtual_experts max_loaded_loras max_lora_chunk_size max_lora_rank max_loras_per_batch
    media_url_max_file_size_mb mm_enable_dp_encoder mm_feature_transport mm_global_cache_backend
    mm_io_worker_num mm_preprocess_cache_size_mb mm_processor_worker_num model_checksum
    modelopt_checkpoint_save_path modelopt_export_path remote_instance_weight_loader_backend
    remote_instance_weight_loader_seed_instance_ip remote_instance_weight_loader_seed_instance_service_port
    remote_instance_weight_loader_send_weights_group_ports
    remote_instance_weight_loader_start_seed_via_transfer_engine startup_weight_load_mode trust_remote_code
    weight_cache_socket weight_cache_timeout weight_loader_disable_mmap weight_loader_drop_cache_after_load
    weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
    """.split()

# These make and accept drafts, which decides the tokens.
_DRAFTS = """
    _speculative_draft_quantization_explicitly_set spec_trace_dir speculative_accept_threshold_acc
    speculative_accept_threshold_single speculative_adaptive speculative_adaptive_config
    speculative_attention_mode speculative_boundary_reduction speculative_domino_candidate_pool_size
    speculative_draft_attention_backend speculative_dsa_topk_backend
    speculative_dspark_align_verify_tokens_to_graph_tier speculative_dspark_confidence_sts_path
    speculative_dspark_sps_table_path speculative_eagle_topk speculative_moe_a2a_backend
    speculative_ngram_capacity speculative_ngram_external_corpus_max_tokens
    speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget speculative_ngram_match_type
    speculative_ngram_max_bfs_breadth speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth
    speculative_num_draft_tokens speculative_num_steps speculative_token_map speculative_use_block_verification
    speculative_use_rejection_sampling
    """.split()

# These concern requests and answers, tokens, logits and sampling.
_SERVING = """
    admin_api_key allow_auto_truncate api_key asr_max_buffer_seconds asr_max_concurrent_sessions
    aux_hidden_state_capture batch_notify_size chat_template completion_template
    constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
    constrained_json_whitespace_pattern default_chat_template_kwargs detokenizer_worker_num
    disable_outlines_disk_cache disable_tokenizer_batch_decode dynamic_batch_tokenizer_batch_size
    dynamic_batch_tokenizer_batch_timeout enable_cache_report enable_custom_logit_processor
    enable_dynamic_batch_tokenizer enable_fp32_lm_head enable_http2 enable_http_worker_reuseport
    enable_response_store enable_return_aux_hidden_states enable_return_hidden_states
    enable_return_indexer_topk enable_return_routed_experts enable_ssl_refresh enable_streaming_session
    enable_strict_thinking enable_tokenizer_batch_encode enable_watermark fastapi_root_path file_storage_path
    grammar_backend grpc_mode grpc_port grpc_response_timeout_secs grpc_worker_threads hf_chat_template_name
    host http2_initial_connection_window_size http2_max_concurrent_streams incremental_streaming_output port
    preferred_sampling_params reasoning_parser return_aux_hidden_state_layer_ids return_hidden_states_mode
    return_input_ids return_output_ids sampling_backend sampling_defaults sampling_mask_max_tokens sidecar
    sidecar_args skip_server_warmup skip_tokenizer_init smg_grpc_mode smg_http_sidecar_port ssl_ca_certs
    ssl_certfile ssl_keyfile ssl_keyfile_password stream_interval stream_response_default_include_usage
    strip_thinking_cache tokenizer_backend tokenizer_mode tokenizer_path tokenizer_worker_num tool_call_parser
    tool_server trust_request_chat_template warmups watermark_config watermark_context_window
    watermark_default_enabled watermark_enforce_all watermark_key watermark_key_b watermark_max_probability
    watermark_mixing_probability weight_version
    """.split()

# These concern logs, metrics and traces.
_OBSERVABILITY = """
    bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token crash_dump_folder
    debug_tensor_dump_layers debug_tensor_dump_output_folder decode_log_interval enable_forward_pass_metrics
    enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics enable_request_time_stats_logging
    enable_trace export_metrics_to_file export_metrics_to_file_dir extra_metric_labels
    forward_pass_metrics_ipc_name forward_pass_metrics_worker_id gc_warning_threshold_secs
    generation_tokens_buckets kv_canary kv_canary_real_data kv_canary_sweep_interval kv_events_config
    load_publish_endpoint load_snapshot_publish_interval log_level log_level_http log_requests
    log_requests_format log_requests_level log_requests_target msprobe_dump_config otlp_service_name
    otlp_traces_endpoint prompt_tokens_buckets show_time_cost stat_loggers
    tokenizer_metrics_allowed_custom_labels tokenizer_metrics_custom_labels_header trace_modules
    uvicorn_access_log_exclude_prefixes
    """.split()

#: The arguments that do not count.
HARMLESS = frozenset().union(
    _TOLD, _MEMORY, _SCHEDULING, _PARALLEL, _KERNELS, _LOADING, _DRAFTS, _SERVING, _OBSERVABILITY
)


def settings_digest(server_arguments: Any) -> str:
    """Digests the arguments, and the variables of this process, that decide the bytes of a page and have no
    fact of their own."""
    try:
        from sglang.srt.environ import envs

        known = dir(type(envs))
    except ImportError:  # another release
        known = []
    told = changed(server_arguments, {"": HARMLESS})
    return digest([told, environment("SGLANG_", known)])
