package stats

//go:generate go test -run ^TestDocument$ . -update

// The metrics, in the order of their rows.
const (
	TotalHits Metric = iota
	OverLimit
	NearLimit
	WithinLimit
	OverLimitWithLocalCache
	ShadowMode
	TotalNegativeHits
	UnlimitedHits
	Rejections
	DecisionsTotal
	GlobalShadowMode
	DomainNotFound
	OverrideIgnoredTotal
	BackendFallbackTotal
	RefundErrorsTotal
	RuleLimit
	Controls
	ControlLimit
	ControlDecisionsTotal
	ReservationsTotal
	ReservationHitsTotal
	ReservedHits
	Tenants
	TenantsUnknownPlan
	TenantsLoadsTotal
	TenantsUnreadTotal
	RLQSStreams
	RLQSBuckets
	RLQSAssignmentsTotal
	RLQSRequestsTotal
	RLQSUnservedTotal

	TotalRequests
	ResponseTime
	ShouldRateLimitError
	CallErrorsTotal
	PanicsTotal
	TLSHandshakeErrorsTotal
	ShedTotal
	Calls
	CallsLimit
	CallsWait
	Connections
	ConnectionsClosedTotal

	ConfigLoadSuccess
	ConfigLoadError
	ConfigLoadErrorsTotal
	ConfigLoadWarningsTotal
	ConfigLoadedTimestamp
	ConfigAge
	RuntimeLoadAttempts
	RuntimeLoadFailures
	RuntimeNumValues
	XDSConnected
	XDSEventsTotal

	BackendCallsTotal
	BackendOpsTotal
	BackendMergedTakesTotal
	BackendBatchSize
	BackendCallSeconds
	BackendErrorsTotal
	BackendEventsTotal
	BackendConnections
	BackendBreakerState
	BackendBreakerOpenedTotal

	BackendEvictedKeysTotal
	BackendWait
	RedisPoolActive
	RedisPoolTotal
	RedisPoolLocalClose
	RedisPerSecondPoolActive
	RedisPerSecondPoolTotal
	RedisPerSecondPoolLocalClose

	MemcacheMultiget
	MemcacheIncrement
	MemcacheAdd
	MemcacheKeysRequested
	MemcacheKeysFound

	NearCacheEntries
	NearCacheHeld
	NearCacheHitsTotal
	NearCacheRejectionsTotal
	NearCacheEvictionsTotal
	NearCacheLeasedTotal
	NearCacheSpentTotal
	NearCacheReturnedTotal
	NearCacheFullTotal
	NearCacheEndedTotal
	NearCacheResetTotal
	NearCacheFailedTotal
	NearCacheUnspentTotal
	LocalCacheHitCount
	LocalCacheMissCount
	LocalCacheLookupCount
	LocalCacheEntryCount
	LocalCacheEvacuateCount
	LocalCacheExpiredCount

	MemoryKeys
	MemoryForcedOutTotal

	CertsLoadAttempts
	CertsLoadFailures
	CertsNumValues
	CertificateNotAfter

	Watchers
	AdminChangesTotal
	AdminDeniedTotal

	BuildInfo
	ReservedTag
	GoAlloc
	GoTotalAlloc
	GoSys
	GoHeapAlloc
	GoHeapSys
	GoHeapIdle
	GoHeapInuse
	GoHeapReleased
	GoHeapObjects
	GoMallocs
	GoFrees
	GoNumGoroutine
	GoNumGC
	GoLastGC
	GoNextGC
	GoPauseTotal
	GoGCCPUPercent

	metricCount // how many there are
)

// Table returns every metric, section by section, as docs/metrics.md has them.
func Table() []Section {
	return []Section{
		{"Requests and rules", "They appear with their first count, except for `ratelimitd_decisions_total`, `ratelimitd_override_ignored_total`, `ratelimitd_refund_errors_total` and, for those of the first 1,000 rules whose `on_failure` is not `error`, `ratelimitd_backend_fallback_total`, which are there from the start.", requestRows()},
		{"Calls", "Those by `grpc_method` appear with the first call of the method, `ratelimit_service_should_rate_limit_error` with its first count, and `ratelimitd_shed_total` of domains beyond the first 100 with the first request that is shed; beyond 1,000 domains they are counted together, as `__other__`.", callRows()},
		{"Loading rules", "The first two appear with their first count; those of xDS are there with CONFIG_TYPE=GRPC_XDS_SOTW or GRPC_XDS_DELTA.", configRows()},
		{"Redis and memcached", "With BACKEND_TYPE=redis or memcache; those by `node` once the node has been asked.", storeRows()},
		{"Redis", "With BACKEND_TYPE=redis; `ratelimit_redis_per_second_pool_` with REDIS_PERSECOND=true.", redisRows()},
		{"memcached", "With BACKEND_TYPE=memcache.", memcachedRows()},
		{"Near cache", "With BACKEND_TYPE=redis or memcache; `ratelimit_localcache_` with LOCAL_CACHE_SIZE_IN_BYTES. Those are gauges because they are in envoyproxy/ratelimit, though most only grow.", nearCacheRows()},
		{"Counters in this process", "They are used with BACKEND_TYPE=memory and by `on_failure: local`.", memoryRows()},
		{"Certificate of the gRPC listener", "With GRPC_SERVER_USE_TLS=true.", certificateRows()},
		{"Admin API", "Unless ADMIN=false.", adminRows()},
		{"Process", "`reserved_tag` is there if EXTRA_TAGS has such a name, and `ratelimit_go_lastGC` after the first garbage collection.", processRows()},
	}
}

func requestRows() []Row {
	rule := func(m Metric, name, help string) Row {
		return counter(m, "ratelimit.service.rate_limit.<key>."+name, help, "domain", "key1", "key2").as("ratelimit_service_rate_limit_" + name)
	}
	return []Row{
		rule(TotalHits, "total_hits", "Hits that requests asked for, whether admitted or rejected."),
		rule(OverLimit, "over_limit", "Hits over the limit, including those of rules in shadow mode, which are admitted."),
		rule(NearLimit, "near_limit", "Hits within the limit, but above NEAR_LIMIT_RATIO of it."),
		rule(WithinLimit, "within_limit", "Hits of requests that were within the limit."),
		rule(OverLimitWithLocalCache, "over_limit_with_local_cache", "Hits over the limit that were rejected from memory, without asking the store; only with LOCAL_CACHE_SIZE_IN_BYTES."),
		rule(ShadowMode, "shadow_mode", "Hits over the limit of a rule in shadow mode, which were admitted all the same."),
		rule(TotalNegativeHits, "total_negative_hits", "Hits that requests refunded (is_negative_hits)."),
		counter(UnlimitedHits, "ratelimitd.unlimited_hits.<key>", "Hits of requests that matched a rule with unlimited: true.", "domain", "key1", "key2").as("ratelimitd_unlimited_hits_total"),
		counter(Rejections, "ratelimitd.rejections.<key>", "Requests that the rule rejected, each counted once regardless of its hits, including checks with 0 hits. Excludes requests that pass in shadow mode, late charges, and requests that a control blocks.", "domain", "key1", "key2").as("ratelimitd_rejections_total"),
		counter(DecisionsTotal, "ratelimitd.decisions_total", "Requests decided, each counted once: passed (ok); passed only because of shadow mode (shadow); charged for a request that had already run (late_charge); rejected by a rule (over_limit); decided by on_failure because the store failed (fallback); or blocked or allowed by a control (control). If several apply, the last one in this list counts. Excludes requests that end in an error. Domains without rules are counted together as `__unknown__`, and those beyond the first 1,000 with rules as `__other__`.", "domain", "verdict"),
		counter(GlobalShadowMode, "ratelimit.service.global_shadow_mode", "Requests over a limit that were admitted because of SHADOW_MODE=true."),
		counter(DomainNotFound, "ratelimit.service.rate_limit.<domain>.domain_not_found", "Descriptors of requests for a domain that has no rules.").as("ratelimit_service_rate_limit_<domain>_domain_not_found"),
		counter(OverrideIgnoredTotal, "ratelimitd.override_ignored_total", "Limits that requests carried and that were ignored.", "domain", "reason"),
		counter(BackendFallbackTotal, "ratelimitd.backend_fallback_total", "Descriptors decided by on_failure because the store failed.", "policy", "rule"),
		counter(RefundErrorsTotal, "ratelimitd.refund_errors_total", "Requests whose hits could not be refunded to the store after another of their descriptors was rejected; the hits stay spent."),
		gauge(RuleLimit, "ratelimitd.rule_limit", "The limit of a rule, in hits per unit, regardless of controls. For the first 1,000 rules.", "algorithm", "limit", "rule", "unit"),
		gauge(Controls, "ratelimitd.controls", "Active controls, by which operators override the rules.", "kind"),
		gauge(ControlLimit, "ratelimitd.control_limit", "The limit of a control that replaces the rule's, in hits per unit. Only for the first 1,000 such controls whose domains have rules.", "control", "domain", "limit", "rule", "unit"),
		counter(ControlDecisionsTotal, "ratelimitd.control_decisions_total", "Descriptors that a control decided, or gave another limit. Those of all but the first 1,000 controls are counted together, as `__other__`.", "control", "kind"),
		counter(ReservationsTotal, "ratelimitd.reservations_total", "Reservations by result: reserved; unrecorded (hits charged without a reservation, because 10,000 were open or there was no key for IDs); released (hits refunded, because the request was rejected after all); settled; unknown (no such reservation is open: it was settled before, has expired, belongs to another descriptor, or the key of its ID was lost with a process); forged (an ID that no key of this server made); charged (a request that ended without a reservation); or expired (not settled in time).", "domain", "outcome"),
		counter(ReservationHitsTotal, "ratelimitd.reservation_hits_total", "Hits that were reserved, that settlements refunded (given_back), or that they charged beyond the reservation. Hits spent are those reserved, less the refunded, plus the charged ones.", "action", "domain"),
		gauge(ReservedHits, "ratelimitd.reserved_hits", "Hits that open reservations hold, over all counters of a rule, including reservations of other replicas. The value of a counter dates from this replica's last decision on it, and is dropped after the ttl of the rule. Replicas that share a store report the same counters: take their maximum, not their sum. For the first 1,000 rules, and 10,000 counters of each.", "rule"),
		gauge(Tenants, "ratelimitd.tenants", "Tenants on a plan, in TENANTS_FILE (file) or in Redis (store), including expired ones.", "source"),
		gauge(TenantsUnknownPlan, "ratelimitd.tenants_unknown_plan", "Tenants on a plan that no rule defines, which get the default.", "source"),
		counter(TenantsLoadsTotal, "ratelimitd.tenants_loads_total", "Loads of TENANTS_FILE by result: loaded, or invalid, in which case the last good one stays in use.", "result"),
		counter(TenantsUnreadTotal, "ratelimitd.tenants_unread_total", "Tenants in Redis that could not be read and are ignored."),
		gauge(RLQSStreams, "ratelimitd.rlqs.streams", "Streams of RLQS clients, which use Envoy's rate limit quota service."),
		gauge(RLQSBuckets, "ratelimitd.rlqs.buckets", "Limits that are divided among RLQS clients."),
		counter(RLQSAssignmentsTotal, "ratelimitd.rlqs.assignments_total", "Assignments that were sent to RLQS clients."),
		counter(RLQSRequestsTotal, "ratelimitd.rlqs.requests_total", "Requests that RLQS clients decided, as they report: allowed or denied.", "domain", "result"),
		counter(RLQSUnservedTotal, "ratelimitd.rlqs.unserved_total", "Streams, buckets and reports of RLQS clients that were denied: beyond the bounds, or displaced by another address (bound); or buckets that match no rule with rlqs (unknown).", "reason"),
	}
}

func callRows() []Row {
	return []Row{
		counter(TotalRequests, "ratelimit_server.<grpc_method>.total_requests", "gRPC calls answered, whatever the answer.", "grpc_method").as("ratelimit_service_total_requests"),
		histogram(ResponseTime, "ratelimit_service_response_time_seconds", "Time taken to answer a gRPC call, in seconds, or in milliseconds with PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true.", "grpc_method").timings("ratelimit_server.<grpc_method>.response_time"),
		counter(ShouldRateLimitError, "ratelimit.service.call.should_rate_limit.<err_type>", "Requests answered with an error instead of a decision. Absent until the first one, unlike ratelimitd_call_errors_total.", "err_type").as("ratelimit_service_should_rate_limit_error"),
		counter(CallErrorsTotal, "ratelimitd.call_errors_total", "Requests answered with an error instead of a decision. Envoy's failure_mode_deny decides them.", "err_type"),
		counter(PanicsTotal, "ratelimitd.panics_total", "Calls that ended in a panic, which is a bug; the log has the stack."),
		counter(TLSHandshakeErrorsTotal, "ratelimitd.tls_handshake_errors_total", "TLS handshakes that failed, of gRPC clients and, with DEBUG_TLS, at the debug port."),
		counter(ShedTotal, "ratelimitd.shed_total", "Requests shed under overload, which on_failure decides: by this process because they waited, or would have waited, too long (process); by the queue of the store (store); or, always with an error and without a domain, before their message was read, because too many calls waited (calls) or had sent no message (waiting).", "domain", "reason"),
		gauge(Calls, "ratelimitd.calls", "Calls of ShouldRateLimit that wait for their turn or are in flight."),
		gauge(CallsLimit, "ratelimitd.calls_limit", "Maximum number of concurrent ShouldRateLimit calls: 4,096, or fewer while the process is busy."),
		gauge(CallsWait, "ratelimitd.calls_wait_seconds", "Average time that recent calls waited for their turn, in seconds; 0 if none waited."),
		gauge(Connections, "ratelimitd.connections", "Open connections of gRPC clients."),
		counter(ConnectionsClosedTotal, "ratelimitd.connections_closed_total", "gRPC connections that were closed: the longest idle, to make room for new ones (idle), or new ones whose address had too many (address).", "reason"),
	}
}

func configRows() []Row {
	return []Row{
		counter(ConfigLoadSuccess, "ratelimit.service.config_load_success", "Sets of rules that were loaded."),
		counter(ConfigLoadError, "ratelimit.service.config_load_error", "Sets of rules that were invalid. Absent until the first one, unlike ratelimitd_config_load_errors_total."),
		counter(ConfigLoadErrorsTotal, "ratelimitd.config_load_errors_total", "Sets of rules that were invalid; the last good set stays in use."),
		counter(ConfigLoadWarningsTotal, "ratelimitd.config_load_warnings_total", "Warnings about sets of rules that were loaded."),
		gauge(ConfigLoadedTimestamp, "ratelimitd.config_loaded_timestamp_seconds", "When the current rules were loaded, as Unix time in seconds; 0 before the first."),
		gauge(ConfigAge, "ratelimitd.config_age_seconds", "Time for which the rules may have been out of date, in seconds; 0 while they are known to be current."),
		counter(RuntimeLoadAttempts, "runtime.load_attempts", "Attempts to load a set of rules."),
		counter(RuntimeLoadFailures, "runtime.load_failures", "Failed attempts to load a set of rules."),
		gauge(RuntimeNumValues, "runtime.num_values", "Files, or resources of the control plane, in the current set of rules."),
		gauge(XDSConnected, "ratelimitd.xds_connected", "1 while the control plane is connected, otherwise 0."),
		counter(XDSEventsTotal, "ratelimitd.xds_events_total", "Events on the stream of the control plane.", "event"),
	}
}

func storeRows() []Row {
	return []Row{
		counter(BackendCallsTotal, "ratelimitd.backend_calls_total", "Round trips to the store."),
		counter(BackendOpsTotal, "ratelimitd.backend_ops_total", "Operations on counters in these round trips, including merged ones."),
		counter(BackendMergedTakesTotal, "ratelimitd.backend_merged_takes_total", "Operations on counters that were merged with another one on the same counter, instead of being sent."),
		histogram(BackendBatchSize, "ratelimitd_backend_batch_size", "Operations that shared a round trip to the store, including merged ones."),
		histogram(BackendCallSeconds, "ratelimitd_backend_call_seconds", "Time taken by a round trip to the store, in seconds."),
		counter(BackendErrorsTotal, "ratelimitd.backend_errors_total", "Operations on counters that failed in the store.", "class"),
		counter(BackendEventsTotal, "ratelimitd.backend_events_total", "Events on the connections to the store.", "event"),
		gauge(BackendConnections, "ratelimitd.backend_connections", "Open connections to the store; with REDIS_PERSECOND=true, 0 until both deployments have had one."),
		gauge(BackendBreakerState, "ratelimitd.backend_breaker_state", "Breaker of the node: 0 is closed (or the node is no longer used), 1 is half-open and probing, 2 is open (or there is no connection).", "node"),
		counter(BackendBreakerOpenedTotal, "ratelimitd.backend_breaker_opened_total", "Times that the breaker of the node opened.", "node"),
	}
}

func redisRows() []Row {
	return []Row{
		counter(BackendEvictedKeysTotal, "ratelimitd.backend_evicted_keys_total", "Keys that Redis evicted for lack of memory while this server was connected; counters among them start from zero.", "node"),
		gauge(BackendWait, "ratelimitd.backend_wait_seconds", "Estimated time that a new operation waits for the node, in seconds: the operations queued and in flight, times the recent time of one.", "node"),
		gauge(RedisPoolActive, "ratelimit.redis_pool.cx_active", "Open connections to Redis."),
		counter(RedisPoolTotal, "ratelimit.redis_pool.cx_total", "Connections to Redis that were opened."),
		counter(RedisPoolLocalClose, "ratelimit.redis_pool.cx_local_close", "Connections to Redis that were closed, by either side."),
		gauge(RedisPerSecondPoolActive, "ratelimit.redis_per_second_pool.cx_active", "Open connections to the Redis for limits per second."),
		counter(RedisPerSecondPoolTotal, "ratelimit.redis_per_second_pool.cx_total", "Connections to the Redis for limits per second that were opened."),
		counter(RedisPerSecondPoolLocalClose, "ratelimit.redis_per_second_pool.cx_local_close", "Connections to the Redis for limits per second that were closed, by either side."),
	}
}

func memcachedRows() []Row {
	return []Row{
		counter(MemcacheMultiget, "ratelimit.memcache.multiget", "Commands to memcached that read counters.", "code"),
		counter(MemcacheIncrement, "ratelimit.memcache.increment", "Commands to memcached that increment a counter.", "code"),
		counter(MemcacheAdd, "ratelimit.memcache.add", "Commands to memcached that create a counter.", "code"),
		counter(MemcacheKeysRequested, "ratelimit.memcache.keys_requested", "Keys that multiget commands asked for."),
		counter(MemcacheKeysFound, "ratelimit.memcache.keys_found", "Keys that multiget commands found."),
	}
}

func nearCacheRows() []Row {
	return []Row{
		gauge(NearCacheEntries, "ratelimitd.near_cache.entries", "Keys in the near cache, with a remembered rejection or a lease."),
		gauge(NearCacheHeld, "ratelimitd.near_cache.held", "Leased hits that are to be spent, or on their way back to the store."),
		counter(NearCacheHitsTotal, "ratelimitd.near_cache.hits_total", "Operations that the near cache answered without asking the store."),
		counter(NearCacheRejectionsTotal, "ratelimitd.near_cache.rejections_total", "Operations that the near cache rejected because it remembered a rejection; also counted as hits."),
		counter(NearCacheEvictionsTotal, "ratelimitd.near_cache.evictions_total", "Keys dropped from the near cache to make room for others."),
		counter(NearCacheLeasedTotal, "ratelimitd.near_cache.leased_total", "Hits leased from the store in advance."),
		counter(NearCacheSpentTotal, "ratelimitd.near_cache.spent_total", "Leased hits that requests spent."),
		counter(NearCacheReturnedTotal, "ratelimitd.near_cache.returned_total", "Leased hits returned to the backend."),
		counter(NearCacheFullTotal, "ratelimitd.near_cache.full_total", "Leased hits returned to a token bucket that is full with them, and may not have had room for all."),
		counter(NearCacheEndedTotal, "ratelimitd.near_cache.ended_total", "Leased hits that ended with their window."),
		counter(NearCacheResetTotal, "ratelimitd.near_cache.reset_total", "Leased hits of counters that were reset."),
		counter(NearCacheFailedTotal, "ratelimitd.near_cache.failed_total", "Leased hits whose return failed, or may have failed."),
		counter(NearCacheUnspentTotal, "ratelimitd.near_cache.unspent_total", "Leased hits that are lost, which is the cost of leasing: those that ended, were reset or failed to be returned."),
		gauge(LocalCacheHitCount, "ratelimit.localcache.hitCount", "Operations so far that a remembered rejection answered."),
		gauge(LocalCacheMissCount, "ratelimit.localcache.missCount", "Operations so far for which no rejection was remembered."),
		gauge(LocalCacheLookupCount, "ratelimit.localcache.lookupCount", "Operations so far for which a remembered rejection was looked for."),
		gauge(LocalCacheEntryCount, "ratelimit.localcache.entryCount", "Rejections remembered, including those that have ended since."),
		gauge(LocalCacheEvacuateCount, "ratelimit.localcache.evacuateCount", "Rejections dropped so far to make room for others."),
		gauge(LocalCacheExpiredCount, "ratelimit.localcache.expiredCount", "Rejections so far that were found to have ended."),
	}
}

func memoryRows() []Row {
	return []Row{
		gauge(MemoryKeys, "ratelimitd.memory.keys", "Live counters in this process, as MEMORY_MAX_KEYS counts them."),
		counter(MemoryForcedOutTotal, "ratelimitd.memory.forced_out_total", "Live counters dropped because there were MEMORY_MAX_KEYS of them; each may admit its limit again."),
	}
}

func certificateRows() []Row {
	return []Row{
		counter(CertsLoadAttempts, "certs.load_attempts", "Attempts to load the certificate, its key and the CA of clients."),
		counter(CertsLoadFailures, "certs.load_failures", "Failed attempts to load the certificate, its key and the CA of clients; the last good ones stay in use."),
		gauge(CertsNumValues, "certs.num_values", "Files that the certificate, its key and the CA of clients are in."),
		gauge(CertificateNotAfter, "ratelimitd.certificate_not_after_timestamp_seconds", "When the certificate expires, as Unix time in seconds."),
	}
}

func adminRows() []Row {
	return []Row{
		gauge(Watchers, "ratelimitd.watchers", "Callers that watch decisions, such as `ratelimitd watch`; while there are none, watching costs nothing."),
		counter(AdminChangesTotal, "ratelimitd.admin_changes_total", "Calls of the admin API that changed something (done), or failed.", "method", "result"),
		counter(AdminDeniedTotal, "ratelimitd.admin_denied_total", "Calls of the admin API, and for profiles, that were denied because of their caller: without a token, with a wrong one, or from elsewhere."),
	}
}

func processRows() []Row {
	return []Row{
		gauge(BuildInfo, "ratelimitd.build_info", "Always 1; the labels contain the version.", "goversion", "version"),
		counter(ReservedTag, "reserved_tag", "Names in EXTRA_TAGS that envoyproxy/ratelimit reserves, such as host and region."),
		gauge(GoAlloc, "ratelimit.go.alloc", "Memory taken by heap objects, live or not yet collected, in bytes; the same as ratelimit_go_heapAlloc."),
		counter(GoTotalAlloc, "ratelimit.go.totalAlloc", "Memory allocated for heap objects so far, in bytes."),
		gauge(GoSys, "ratelimit.go.sys", "Memory obtained from the operating system, in bytes."),
		gauge(GoHeapAlloc, "ratelimit.go.heapAlloc", "Memory taken by heap objects, live or not yet collected, in bytes."),
		gauge(GoHeapSys, "ratelimit.go.heapSys", "Memory obtained for the heap, in use and idle, in bytes."),
		gauge(GoHeapIdle, "ratelimit.go.heapIdle", "Memory of the heap that holds no objects, in bytes."),
		gauge(GoHeapInuse, "ratelimit.go.heapInuse", "Memory of the heap that holds objects, including gaps between them, in bytes."),
		gauge(GoHeapReleased, "ratelimit.go.heapReleased", "Memory of the heap returned to the operating system, in bytes."),
		gauge(GoHeapObjects, "ratelimit.go.heapObjects", "Objects on the heap, live or not yet collected."),
		counter(GoMallocs, "ratelimit.go.mallocs", "Heap objects allocated so far."),
		counter(GoFrees, "ratelimit.go.frees", "Heap objects freed so far."),
		gauge(GoNumGoroutine, "ratelimit.go.numGoroutine", "Goroutines running or waiting."),
		counter(GoNumGC, "ratelimit.go.numGC", "Garbage collections completed."),
		gauge(GoLastGC, "ratelimit.go.lastGC", "When the last garbage collection ended, as Unix time in nanoseconds."),
		gauge(GoNextGC, "ratelimit.go.nextGC", "Size of the heap that the next garbage collection aims at, in bytes."),
		counter(GoPauseTotal, "ratelimit.go.pauseTotalNs", "Time for which garbage collections stopped everything else, in nanoseconds."),
		gauge(GoGCCPUPercent, "ratelimit.go.gcCPUPercent", "CPU time spent on garbage collection so far, in whole percent of what was available."),
	}
}

// LabelTexts returns every label, and what its values are, in Markdown.
func LabelTexts() []LabelText {
	return []LabelText{
		{"domain", "the domain of the rules; of decisions also `__unknown__` and `__other__`, as the help says"},
		{"key1", "the first level of the rule below its domain: its key, and its value if it has one, as `key_value`"},
		{"key2", "the second level, if there is one; deeper levels are added up"},
		{"reason", "of an override: `not_allowed`: its domain does not have `allow_limit_override: true`; `invalid`: it makes no sense. Of a request that was " +
			"shed: `process`, `store`, `calls` and `waiting`, and of a connection that was closed: `idle` and `address`, as the help says. Of what RLQS clients are denied: `bound` or `unknown`."},
		{"policy", "what `on_failure` says: `allow`, `deny` or `local`"},
		{"limit", "the name of the limit, if it has one"},
		{"unit", "the window of the limit, such as `minute` or `5 minutes`"},
		{"algorithm", "how the limit counts, such as `fixed_window`"},
		{"method", "the method of the admin API, such as `Block`"},
		{"result", "`done` or `failed`; of TENANTS_FILE `loaded` or `invalid`; of requests that RLQS clients decide `allowed` or `denied`"},
		{"verdict", "`ok`, `shadow`, `late_charge`, `over_limit`, `fallback` or `control`, as the help says"},
		{"source", "where the plan of a tenant comes from: `file` (TENANTS_FILE) or `store` (Redis)"},
		{"control", "the ID of the control, as in `ratelimitd controls`"},
		{"outcome", "`reserved`, `unrecorded`, `released`, `settled`, `unknown`, `forged`, `charged` or `expired`, as the help says"},
		{"action", "`reserved`, `given_back` or `charged`"},
		{"kind", "`block`, `allow` or `limit`"},
		{"rule", "the path of the rule, such as `shop.login`; `__override__` is a limit of a request, where there is no rule"},
		{"grpc_method", "the method, without its service, such as `ShouldRateLimit`"},
		{"err_type", "`redis_error`: the store failed, which may be memcached too; `service_error`: the request cannot be answered, or there are no rules"},
		{"class", "`timeout` and `reset` (the connection broke): hits may have been counted; `refused`: there is no connection; `noauth`: a wrong password, or a " +
			"missing permission; `oom`: no memory is left; `readonly`, `busy` (with another client's script), `loading`, `clusterdown`, `noscript`: as Redis says; `other`"},
		{"event", "of a store: `connected`, `connect_failed`; of Redis also `dataset_changed` (it was restarted, and counters may be gone), `maxmemory` (its " +
			"maxmemory-policy may drop counters), `master_changed`, `denied` and `permitted` (what decisions need), `limited` (the keys of some " +
			"domains are denied), `lacking` (it, or a proxy in front of it, lacks some commands that can be done without); of memcached also `lookup_failed` and `servers_changed` (by DNS). Of a control plane: `connected`, `disconnected`, `taken` and `invalid` (a " +
			"set of rules), `unchanged`, `coalesced` (overtaken by a later response), `empty` (no rules at all)"},
		{"node", "the server, as host and port or as the path of a socket"},
		{"code", "`success` or `error`; for `increment` also `miss` (there is no such counter yet), for `add` also `not_stored` (there is one already)"},
		{"goversion", "the version of Go that built this server"},
		{"version", "the version of this server"},
	}
}
