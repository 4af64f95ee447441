package stats

import (
	"slices"
	"strings"
)

//go:generate go test -run ^TestDocument$ . -rewrite

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
	LearnedEstimate
	MistakesTotal
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

	metricCount // number of metrics
)

// Metric identifies a metric. Its row in table.go has its names, labels, and help.
type Metric uint8

// Row describes a metric.
type Row struct {
	metric Metric
	Type   Kind
	Statsd string   // name in statsd form, with variable parts in angle brackets; empty if only Prometheus has it
	Name   string   // name in Prometheus
	Labels []string // names, sorted; tags in statsd unless they are part of the name
	Help   string   // meaning and unit

	largest bool // series that are equal in Prometheus show the largest value of the gauge, not the sum
}

// Section is a part of the table.
type Section struct {
	Title string
	Text  string // condition for its metrics
	Rows  []Row
}

// LabelText describes the values of a label.
type LabelText struct{ Name, Text string }

func counter(m Metric, name, help string, labels ...string) Row {
	return Row{metric: m, Type: Count, Statsd: name, Name: metricName(name), Labels: labels, Help: help}
}

func gauge(m Metric, name, help string, labels ...string) Row {
	return Row{metric: m, Type: Gauge, Statsd: name, Name: metricName(name), Labels: labels, Help: help}
}

// largest returns the row of a gauge that shows the largest value of rules with the same path, because their sum has no meaning.
func largest(m Metric, name, help string, labels ...string) Row {
	r := gauge(m, name, help, labels...)
	r.largest = true
	return r
}

// histogram returns the row of a histogram with this Prometheus name, which statsd does not receive.
func histogram(m Metric, name, help string, labels ...string) Row {
	return Row{metric: m, Type: Timing, Name: name, Labels: labels, Help: help}
}

// as returns r with a Prometheus name that does not follow from the statsd name.
func (r Row) as(name string) Row {
	r.Name = name
	return r
}

// varies reports whether the statsd name contains a value.
func (r *Row) varies() bool { return strings.Contains(r.Statsd, "<") }

// rows returns the table by metric.
func rows() *[metricCount]Row {
	all := new([metricCount]Row)
	for _, s := range Table() {
		for _, r := range s.Rows {
			all[r.metric] = r
		}
	}
	return all
}

// Table returns all metrics by section, in the order of docs/metrics.md.
func Table() []Section { return slices.Concat(requests(), stores(), rest()) }

func requests() []Section {
	rule := func(m Metric, name, help string) Row {
		return counter(m, "ratelimit.service.rate_limit.<key>."+name, help, "domain", "key1", "key2").as("ratelimit_service_rate_limit_" + name)
	}
	return []Section{
		{"Requests and rules", "These appear with their first count. From the start, only `ratelimitd_decisions_total`, `ratelimitd_override_ignored_total` and `ratelimitd_refund_errors_total` exist, and `ratelimitd_backend_fallback_total` for those of the first 1,000 rules whose `on_failure` isn't `error`.", []Row{
			rule(TotalHits, "total_hits", "Hits that requests asked for, whether admitted or rejected."),
			rule(OverLimit, "over_limit", "Hits over the limit, including the admitted hits of rules in shadow mode."),
			rule(NearLimit, "near_limit", "Hits within the limit, but above NEAR_LIMIT_RATIO of it."),
			rule(WithinLimit, "within_limit", "Hits of requests within the limit."),
			rule(OverLimitWithLocalCache, "over_limit_with_local_cache", "Hits over the limit, rejected from memory without asking the backend. Only with LOCAL_CACHE_SIZE_IN_BYTES."),
			rule(ShadowMode, "shadow_mode", "Admitted hits over the limit of a rule in shadow mode."),
			rule(TotalNegativeHits, "total_negative_hits", "Hits refunded by requests (is_negative_hits)."),
			counter(UnlimitedHits, "ratelimitd.unlimited_hits.<key>", "Hits of requests that matched a rule with unlimited: true.", "domain", "key1", "key2").as("ratelimitd_unlimited_hits_total"),
			counter(Rejections, "ratelimitd.rejections.<key>", "Requests that the rule rejected, including checks without hits. Each counts once, whatever its hits. Excludes shadow mode, late charges, and blocks by a control.", "domain", "key1", "key2").as("ratelimitd_rejections_total"),
			counter(DecisionsTotal, "ratelimitd.decisions_total", "Decided requests by verdict. ok: passed. shadow: passed only because of shadow mode. late_charge: charged for a request that had already run. over_limit: rejected by a rule. fallback: decided by on_failure because the backend failed. control: blocked or allowed by a control. If several apply, the last in this list is counted. Excludes requests that end in an error. Domains without rules are counted as `__unknown__`, those beyond the first 1,000 with rules as `__other__`.", "domain", "verdict"),
			counter(GlobalShadowMode, "ratelimit.service.global_shadow_mode", "Requests over a limit that were admitted because of SHADOW_MODE=true."),
			counter(DomainNotFound, "ratelimit.service.rate_limit.<domain>.domain_not_found", "Descriptors of requests for domains without rules.").as("ratelimit_service_rate_limit_<domain>_domain_not_found"),
			counter(OverrideIgnoredTotal, "ratelimitd.override_ignored_total", "Request-carried limits that were ignored.", "domain", "reason"),
			counter(BackendFallbackTotal, "ratelimitd.backend_fallback_total", "Descriptors decided by on_failure because the backend failed.", "policy", "rule"),
			counter(RefundErrorsTotal, "ratelimitd.refund_errors_total", "Requests whose hits could not be refunded to the backend after another of their descriptors was rejected. The hits stay spent."),
			largest(RuleLimit, "ratelimitd.rule_limit", "Limit of a rule in hits per unit, regardless of controls. Of rules with the same path, the largest. Only for the first 1,000 rules.", "algorithm", "limit", "rule", "unit"),
			gauge(Controls, "ratelimitd.controls", "Active controls: operators' overrides of the rules.", "kind"),
			gauge(ControlLimit, "ratelimitd.control_limit", "Limit, in hits per unit, of a control that replaces a rule's limit. Only for the first 1,000 such controls whose domains have rules.", "control", "domain", "limit", "rule", "unit"),
			counter(ControlDecisionsTotal, "ratelimitd.control_decisions_total", "Descriptors that a control decided, or gave a different limit. Controls beyond the first 1,000 are counted together, as `__other__`.", "control", "kind"),
			counter(ReservationsTotal, "ratelimitd.reservations_total", "Reservations by result. reserved: hits were reserved. unrecorded: hits were spent without a reservation, because 10,000 were open or IDs had no key. released: hits were refunded because the request was rejected. settled. unknown: no such reservation is open; it was settled, has expired, belongs to a different descriptor, or the key of its ID was lost with a process. forged: no key of this server made the ID. charged: a request ended without a reservation and was charged. expired: not settled in time. repeated: a request came again with the value of one that had ended, and reserved nothing. late: hits of such a request, or of one that had expired, were charged.", "domain", "outcome"),
			counter(ReservationHitsTotal, "ratelimitd.reservation_hits_total", "Hits that were reserved, refunded by settlements (given_back), or charged by settlements beyond the reservation. Hits spent are reserved - given_back + charged.", "action", "domain"),
			gauge(ReservedHits, "ratelimitd.reserved_hits", "Hits held by open reservations on all counters of a rule, as of this replica's last decision on each counter. A counter is dropped after the rule's ttl without a decision. Includes reservations of other replicas: take the maximum over replicas, not the sum. Only for the first 1,000 rules, and 10,000 counters of each.", "rule"),
			largest(LearnedEstimate, "ratelimitd.learned_estimate", "Hits that a request without hits reserves now, where the estimate is learned from true costs. Of rules with the same path, the largest. Only for the first 1,000 rules.", "rule"),
			counter(MistakesTotal, "ratelimitd.mistakes_total", "Calls that show a probable mistake in a rule for requests that are charged at their end, or in its calls. no_reservation: hits came without a reservation ID, while requests got estimates and none was settled. dropped_charge: a charge that did not fit was not counted. single_use: nearly every request has its own counter, so nothing is limited. Appears with the first such call.", "mistake", "rule"),
			gauge(Tenants, "ratelimitd.tenants", "Tenants with a plan, from TENANTS_FILE (file) or Redis (store), which appears once Redis has answered. Includes expired entries.", "source"),
			gauge(TenantsUnknownPlan, "ratelimitd.tenants_unknown_plan", "Tenants with a plan that no rule defines. They get the default plan.", "source"),
			counter(TenantsLoadsTotal, "ratelimitd.tenants_loads_total", "Loads of TENANTS_FILE by result: loaded or invalid. After an invalid load, the last good table stays in use. Excludes changes in Redis.", "result"),
			counter(TenantsUnreadTotal, "ratelimitd.tenants_unread_total", "Tenants in Redis that could not be read and are ignored."),
			gauge(RLQSStreams, "ratelimitd.rlqs.streams", "Open streams of RLQS clients, which decide locally (Envoy's rate limit quota service)."),
			gauge(RLQSBuckets, "ratelimitd.rlqs.buckets", "Limits divided among RLQS clients."),
			counter(RLQSAssignmentsTotal, "ratelimitd.rlqs.assignments_total", "Assignments sent to RLQS clients."),
			counter(RLQSRequestsTotal, "ratelimitd.rlqs.requests_total", "Requests that RLQS clients report as allowed or denied.", "domain", "result"),
			counter(RLQSUnservedTotal, "ratelimitd.rlqs.unserved_total", "Rejected streams, buckets and reports of RLQS clients: those beyond the bounds or displaced by another address (bound), and buckets that match no rule with rlqs (unknown).", "reason"),
		}},
		{"Calls", "Metrics by `grpc_method` appear with the first call of the method, `ratelimit_service_should_rate_limit_error` with its first count. For domains beyond the first 100, `ratelimitd_shed_total` appears with the first shed request. Domains beyond 1,000 are counted together, as `__other__`.", []Row{
			counter(TotalRequests, "ratelimit_server.<grpc_method>.total_requests", "gRPC calls answered, whatever the answer.", "grpc_method").as("ratelimit_service_total_requests"),
			{metric: ResponseTime, Type: Timing, Statsd: "ratelimit_server.<grpc_method>.response_time", Name: "ratelimit_service_response_time_seconds", Labels: []string{"grpc_method"}, Help: "Time taken to answer a gRPC call, in seconds, or in milliseconds with PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true."},
			counter(ShouldRateLimitError, "ratelimit.service.call.should_rate_limit.<err_type>", "Requests answered with an error instead of a decision. Absent until the first one, unlike ratelimitd_call_errors_total.", "err_type").as("ratelimit_service_should_rate_limit_error"),
			counter(CallErrorsTotal, "ratelimitd.call_errors_total", "Requests answered with an error instead of a decision. Envoy's failure_mode_deny decides them.", "err_type"),
			counter(PanicsTotal, "ratelimitd.panics_total", "Calls that ended in a panic, which is a bug; the log has the stack."),
			counter(TLSHandshakeErrorsTotal, "ratelimitd.tls_handshake_errors_total", "Failed TLS handshakes with gRPC clients and, with DEBUG_TLS, at the debug port."),
			counter(ShedTotal, "ratelimitd.shed_total", "Requests shed in an overload. on_failure decides those shed by this process because they had waited or would wait for too long (process), and by the queue of the backend (store). Requests shed before their message was read, because too many calls waited (calls) or had not sent a message (waiting), end in an error and have no domain.", "domain", "reason"),
			gauge(Calls, "ratelimitd.calls", "Calls of ShouldRateLimit that wait for their turn or are in flight."),
			gauge(CallsLimit, "ratelimitd.calls_limit", "Calls of ShouldRateLimit that may currently be in flight: 4,096, or fewer while the process is busy."),
			gauge(CallsWait, "ratelimitd.calls_wait_seconds", "Average time that calls recently waited for their turn, in seconds; 0 if none waited."),
			gauge(Connections, "ratelimitd.connections", "Open connections of gRPC clients."),
			counter(ConnectionsClosedTotal, "ratelimitd.connections_closed_total", "Closed connections of gRPC clients: the longest idle, to accept a new one (idle), or a new one, because its address had too many (address).", "reason"),
		}},
		{"Loading rules", "The first two appear with their first count. Metrics of xDS need CONFIG_TYPE=GRPC_XDS_SOTW or GRPC_XDS_DELTA.", []Row{
			counter(ConfigLoadSuccess, "ratelimit.service.config_load_success", "Loaded sets of rules."),
			counter(ConfigLoadError, "ratelimit.service.config_load_error", "Invalid sets of rules. Absent until the first one, unlike ratelimitd_config_load_errors_total."),
			counter(ConfigLoadErrorsTotal, "ratelimitd.config_load_errors_total", "Invalid sets of rules. The last good set stays in use."),
			counter(ConfigLoadWarningsTotal, "ratelimitd.config_load_warnings_total", "Warnings about loaded sets of rules."),
			gauge(ConfigLoadedTimestamp, "ratelimitd.config_loaded_timestamp_seconds", "When the current rules were loaded, as Unix time in seconds; 0 before the first."),
			gauge(ConfigAge, "ratelimitd.config_age_seconds", "How long the rules, or their overlay, may have differed from their source, in seconds; 0 while they are current. A reload beside something invalid does not reset it."),
			counter(RuntimeLoadAttempts, "runtime.load_attempts", "Attempts to load a set of rules."),
			counter(RuntimeLoadFailures, "runtime.load_failures", "Failed attempts to load a set of rules."),
			gauge(RuntimeNumValues, "runtime.num_values", "Files, or resources of the control plane, in the current set of rules."),
			gauge(XDSConnected, "ratelimitd.xds_connected", "1 while the control plane is connected, otherwise 0."),
			counter(XDSEventsTotal, "ratelimitd.xds_events_total", "Events on the stream of the control plane.", "event"),
		}},
	}
}

func stores() []Section {
	return []Section{
		{"Redis and memcached", "With BACKEND_TYPE=redis or memcache. Metrics by `node` appear with the first call to the node.", []Row{
			counter(BackendCallsTotal, "ratelimitd.backend_calls_total", "Round trips to the backend."),
			counter(BackendOpsTotal, "ratelimitd.backend_ops_total", "Operations on counters in these round trips, including merged ones."),
			counter(BackendMergedTakesTotal, "ratelimitd.backend_merged_takes_total", "Operations merged with another on the same counter instead of being sent."),
			histogram(BackendBatchSize, "ratelimitd_backend_batch_size", "Operations that shared a round trip to the backend, including merged ones."),
			histogram(BackendCallSeconds, "ratelimitd_backend_call_seconds", "Time taken by a round trip to the backend, in seconds."),
			counter(BackendErrorsTotal, "ratelimitd.backend_errors_total", "Failed operations on counters in the backend.", "class"),
			counter(BackendEventsTotal, "ratelimitd.backend_events_total", "Events on the connections to the backend.", "event"),
			gauge(BackendConnections, "ratelimitd.backend_connections", "Open connections to the backend. With REDIS_PERSECOND=true, 0 until both deployments have been connected."),
			gauge(BackendBreakerState, "ratelimitd.backend_breaker_state", "State of the node's breaker: 0 is closed (or the node is no longer used), 1 is half-open and probing, 2 is open (or not connected).", "node"),
			counter(BackendBreakerOpenedTotal, "ratelimitd.backend_breaker_opened_total", "Number of times the node's breaker opened.", "node"),
		}},
		{"Redis", "With BACKEND_TYPE=redis; `ratelimit_redis_per_second_pool_` with REDIS_PERSECOND=true.", []Row{
			counter(BackendEvictedKeysTotal, "ratelimitd.backend_evicted_keys_total", "Keys that Redis evicted for lack of memory while this server was connected. Evicted counters start from zero.", "node"),
			gauge(BackendWait, "ratelimitd.backend_wait_seconds", "Time that a new operation would wait for the node, in seconds: operations queued and sent, multiplied by the recent duration of an operation.", "node"),
			gauge(RedisPoolActive, "ratelimit.redis_pool.cx_active", "Open connections to Redis."),
			counter(RedisPoolTotal, "ratelimit.redis_pool.cx_total", "Connections opened to Redis."),
			counter(RedisPoolLocalClose, "ratelimit.redis_pool.cx_local_close", "Connections to Redis closed by either side."),
			gauge(RedisPerSecondPoolActive, "ratelimit.redis_per_second_pool.cx_active", "Open connections to the Redis for per-second limits."),
			counter(RedisPerSecondPoolTotal, "ratelimit.redis_per_second_pool.cx_total", "Connections opened to the Redis for per-second limits."),
			counter(RedisPerSecondPoolLocalClose, "ratelimit.redis_per_second_pool.cx_local_close", "Connections to the Redis for per-second limits closed by either side."),
		}},
		{"memcached", "With BACKEND_TYPE=memcache.", []Row{
			counter(MemcacheMultiget, "ratelimit.memcache.multiget", "Commands to memcached that read counters.", "code"),
			counter(MemcacheIncrement, "ratelimit.memcache.increment", "Commands to memcached that increment a counter.", "code"),
			counter(MemcacheAdd, "ratelimit.memcache.add", "Commands to memcached that create a counter.", "code"),
			counter(MemcacheKeysRequested, "ratelimit.memcache.keys_requested", "Keys that multiget commands asked for."),
			counter(MemcacheKeysFound, "ratelimit.memcache.keys_found", "Keys that multiget commands found."),
		}},
		{"Near cache", "With BACKEND_TYPE=redis or memcache; `ratelimit_localcache_` with LOCAL_CACHE_SIZE_IN_BYTES. As in envoyproxy/ratelimit, these are gauges, though most only grow.", []Row{
			gauge(NearCacheEntries, "ratelimitd.near_cache.entries", "Keys in the near cache, with a remembered rejection or a lease."),
			gauge(NearCacheHeld, "ratelimitd.near_cache.held", "Leased hits that are unspent, or on their way back to the backend."),
			counter(NearCacheHitsTotal, "ratelimitd.near_cache.hits_total", "Operations that the near cache answered without asking the backend."),
			counter(NearCacheRejectionsTotal, "ratelimitd.near_cache.rejections_total", "Operations that the near cache rejected because it remembered a rejection; also counted as hits."),
			counter(NearCacheEvictionsTotal, "ratelimitd.near_cache.evictions_total", "Keys dropped from the near cache to make room for new ones."),
			counter(NearCacheLeasedTotal, "ratelimitd.near_cache.leased_total", "Hits leased from the backend in advance."),
			counter(NearCacheSpentTotal, "ratelimitd.near_cache.spent_total", "Leased hits that requests spent."),
			counter(NearCacheReturnedTotal, "ratelimitd.near_cache.returned_total", "Leased hits returned to the backend."),
			counter(NearCacheFullTotal, "ratelimitd.near_cache.full_total", "Leased hits whose return filled a token bucket, which may not have had room for all of them."),
			counter(NearCacheEndedTotal, "ratelimitd.near_cache.ended_total", "Leased hits that ended with their window."),
			counter(NearCacheResetTotal, "ratelimitd.near_cache.reset_total", "Leased hits of counters that were reset."),
			counter(NearCacheFailedTotal, "ratelimitd.near_cache.failed_total", "Leased hits that were not returned, or may not have been."),
			counter(NearCacheUnspentTotal, "ratelimitd.near_cache.unspent_total", "Leased hits lost, the cost of leasing: ended, reset, or not returned."),
			gauge(LocalCacheHitCount, "ratelimit.localcache.hitCount", "Operations answered so far by a remembered rejection."),
			gauge(LocalCacheMissCount, "ratelimit.localcache.missCount", "Operations so far without a remembered rejection."),
			gauge(LocalCacheLookupCount, "ratelimit.localcache.lookupCount", "Lookups of remembered rejections so far."),
			gauge(LocalCacheEntryCount, "ratelimit.localcache.entryCount", "Rejections remembered, including those that have since ended."),
			gauge(LocalCacheEvacuateCount, "ratelimit.localcache.evacuateCount", "Rejections dropped so far to make room for new ones."),
			gauge(LocalCacheExpiredCount, "ratelimit.localcache.expiredCount", "Remembered rejections found so far to have ended."),
		}},
		{"Counters in this process", "With BACKEND_TYPE=memory, and for `on_failure: local`.", []Row{
			gauge(MemoryKeys, "ratelimitd.memory.keys", "Live counters in this process, as MEMORY_MAX_KEYS counts them."),
			counter(MemoryForcedOutTotal, "ratelimitd.memory.forced_out_total", "Live counters dropped because MEMORY_MAX_KEYS was reached. Each may admit its full limit again."),
		}},
	}
}

func rest() []Section {
	return []Section{
		{"Certificate of the gRPC listener", "With GRPC_SERVER_USE_TLS=true.", []Row{
			counter(CertsLoadAttempts, "certs.load_attempts", "Attempts to load the certificate, its key and the client CA."),
			counter(CertsLoadFailures, "certs.load_failures", "Failed attempts to load the certificate, its key and the client CA. The last good ones stay in use."),
			gauge(CertsNumValues, "certs.num_values", "Files that contain the certificate, its key and the client CA."),
			gauge(CertificateNotAfter, "ratelimitd.certificate_not_after_timestamp_seconds", "When the certificate expires, as Unix time in seconds."),
		}},
		{"Admin API", "Unless ADMIN=false.", []Row{
			gauge(Watchers, "ratelimitd.watchers", "Callers that watch decisions, such as `ratelimitd watch`; without callers, watching costs nothing."),
			counter(AdminChangesTotal, "ratelimitd.admin_changes_total", "Calls of the admin API that changed something (done) or failed (failed).", "method", "result"),
			counter(AdminDeniedTotal, "ratelimitd.admin_denied_total", "Denied calls of the admin API and for profiles: without a token, with a wrong token, or from another machine."),
		}},
		{"Process", "`reserved_tag` appears if EXTRA_TAGS contains such a name, `ratelimit_go_lastGC` after the first garbage collection.", []Row{
			gauge(BuildInfo, "ratelimitd.build_info", "Always 1. The labels show the version.", "goversion", "version"),
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
			gauge(GoNextGC, "ratelimit.go.nextGC", "Target size of the heap for the next garbage collection, in bytes."),
			counter(GoPauseTotal, "ratelimit.go.pauseTotalNs", "Time for which garbage collections stopped everything else, in nanoseconds."),
			gauge(GoGCCPUPercent, "ratelimit.go.gcCPUPercent", "CPU time spent on garbage collection so far, in whole percent of what was available."),
		}},
	}
}

// LabelTexts returns all labels with descriptions of their values in Markdown.
func LabelTexts() []LabelText {
	return []LabelText{
		{"domain", "the domain of the rules; for decisions also `__unknown__` and `__other__`"},
		{"key1", "the first level of the rule below its domain: its key, and its value if it has one, as `key_value`"},
		{"key2", "the second level, if any; rules that differ only in deeper levels are summed"},
		{"reason", "for an ignored override: `not_allowed` (its domain does not have `allow_limit_override: true`) or `invalid`; for a shed request: `process`, " +
			"`store`, `calls` or `waiting`; for a closed connection: `idle` or `address`; for RLQS: `bound` or `unknown`"},
		{"policy", "the fallback in effect: `allow`, `deny` or `local`"},
		{"limit", "the name of the limit, if it has one"},
		{"unit", "the window of the limit, such as `minute` or `5 minutes`"},
		{"algorithm", "how the limit counts, such as `fixed_window`"},
		{"method", "the method of the admin API, such as `Block`"},
		{"result", "`done` or `failed`; for TENANTS_FILE, `loaded` or `invalid`; for RLQS, `allowed` or `denied`"},
		{"verdict", "`ok`, `shadow`, `late_charge`, `over_limit`, `fallback` or `control`"},
		{"source", "source of a tenant's plan: `file` (TENANTS_FILE) or `store` (Redis)"},
		{"control", "the ID of the control, as in `ratelimitd controls`"},
		{"outcome", "`reserved`, `unrecorded`, `released`, `settled`, `unknown`, `forged`, `charged`, `expired`, `repeated` or `late`"},
		{"mistake", "`no_reservation`, `dropped_charge` or `single_use`"},
		{"action", "`reserved`, `given_back` or `charged`"},
		{"kind", "`block`, `allow` or `limit`"},
		{"rule", "the path of the rule, such as `shop.login`; `__override__` is for request-carried limits without a matching rule"},
		{"grpc_method", "the method, without its service, such as `ShouldRateLimit`"},
		{"err_type", "`redis_error`: the backend failed, memcached included; `service_error`: the request cannot be answered, or no rules are loaded"},
		{"class", "`timeout` and `reset` (the connection broke): hits may have been counted. `refused`: no connection. `noauth`: a wrong password, or a " +
			"missing permission. `oom`: out of memory. `busy`: blocked by another client's script. `readonly`, `loading`, `clusterdown`, `noscript`: Redis's reply. `other`"},
		{"event", "backends: `connected`, `connect_failed`. Redis: `dataset_changed` (restarted; counters may be lost), `maxmemory` (its maxmemory-policy may " +
			"evict counters), `master_changed`. Control plane: " +
			"`connected`, `disconnected`, `taken` and `invalid` (a set of rules), `unchanged`, `coalesced` (superseded by a later response), `empty` (no rules)"},
		{"node", "the server, as host and port or as the path of a socket"},
		{"code", "`success` or `error`; for `increment` also `miss` (no such counter), for `add` also `not_stored` (the counter exists)"},
		{"goversion", "the version of Go that built this server"},
		{"version", "the version of this server"},
	}
}
