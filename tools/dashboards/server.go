package main

// The rows about this service and its store.

func store() []panel {
	return []panel{
		{
			title: "Round trips and operations", unit: "ops", see: "operate.md#load",
			help: "Operations on counters, the round trips that carried them, and the operations that were merged with another one instead of being sent.",
			queries: []query{
				{"sum(rate(ratelimitd_backend_ops_total{$self}[$__rate_interval]))", "operations"},
				{"sum(rate(ratelimitd_backend_calls_total{$self}[$__rate_interval]))", "round trips"},
				{"sum(rate(ratelimitd_backend_merged_takes_total{$self}[$__rate_interval]))", "merged"},
			},
		},
		{
			title: "Round trips to the store", unit: "s", see: "redis.md#when-redis-fails", warn: slow, bad: 0.05,
			help: "After 50 ms Redis counts as silent. Slow with an idle Redis: something stops it from time to time (SLOWLOG GET, forks, the network).",
			queries: []query{
				{"histogram_quantile(0.5, sum by (le) (" + tripIn + "))", "half of them within"},
				{"histogram_quantile(0.99, sum by (le) (" + tripIn + "))", "99 % within"},
			},
		},
		{
			title: "Round trips, each one", kind: heat, unit: "s", see: "redis.md#when-redis-fails",
			help:    "How many round trips took how long.",
			queries: []query{{"sum by (le) (increase(ratelimitd_backend_call_seconds_bucket{$self}[$__rate_interval]))", "{{le}}"}},
		},
		{
			title: "Failed operations by class", kind: areas, unit: "ops", see: "redis.md#when-redis-fails", warn: 0.1, bad: 1,
			help:    "noauth is for you to fix (password, permissions), oom means that Redis needs memory; the rest is Redis or the network. After timeout and reset hits may have been counted.",
			queries: []query{{"sum by (class) (" + failed + ")", "{{class}}"}},
		},
		{
			title: "Decided by on_failure", kind: areas, unit: "short", see: "runbooks.md#ratelimitfallback", warn: 0.1, bad: 1,
			help:    "Descriptors a second that were decided without the store, by rule and policy. allow means that the limit does not hold; local, that each server counts alone.",
			queries: []query{{"sum by (rule, policy) (rate(ratelimitd_backend_fallback_total{$self}[$__rate_interval]))", "{{rule}}: {{policy}}"}},
		},
		{
			title: "Breakers", unit: "short", see: "redis.md#when-redis-fails", warn: 1, bad: 2,
			help:    "Of each node, the worst of all servers: 0 closed, 1 probing, 2 open. Open on one server only: the network between these two.",
			queries: []query{{"max by (node) (ratelimitd_backend_breaker_state{$self})", "{{node}}"}},
		},
		{
			title: "Wait for a node", unit: "s", see: "operate.md#load", warn: 0.001, bad: 0.002,
			help:    "How long an operation that comes now would wait. Above 2 ms the node is near its peak, and at 9 ms requests are shed.",
			queries: []query{{"max by (node) (ratelimitd_backend_wait_seconds{$self})", "{{node}}"}},
		},
		{
			title: "Operations in a round trip", unit: "short", see: "operate.md#load",
			help:    "On average. It rises when Redis is busy: more share a round trip.",
			queries: []query{{"sum(rate(ratelimitd_backend_batch_size_sum{$self}[$__rate_interval])) / (sum(rate(ratelimitd_backend_batch_size_count{$self}[$__rate_interval])) > 0)", "operations"}},
		},
		{
			title: "Connections to the store", unit: "short", see: "redis.md#when-redis-fails",
			help:    "0 on a server: it has none, and on_failure decides there.",
			queries: []query{{"sum by (instance) (ratelimitd_backend_connections{$self})", "{{instance}}"}},
		},
		{
			title: "What happened to connections", unit: "short", see: "operate.md#what-to-watch",
			help:    "dataset_changed: counters may be gone. maxmemory: Redis may drop counters. denied: the user may not do what decisions need; the log has the command that allows it.",
			queries: []query{{"sum by (event) (increase(ratelimitd_backend_events_total{$self}[$__rate_interval])) > 0", "{{event}}"}},
		},
		{
			title: "Counters that Redis dropped", unit: "short", see: "runbooks.md#ratelimitredisevicts", warn: 1, bad: 1,
			help:    "Evicted for lack of memory: their limits start from zero. Raise maxmemory, and set maxmemory-policy noeviction.",
			queries: []query{{"sum by (node) (increase(ratelimitd_backend_evicted_keys_total{$self}[$__rate_interval]))", "{{node}}"}},
		},
		{
			title: "Counters in memory", unit: "short", see: "operate.md#counters-in-memory",
			help: "With BACKEND_TYPE=memory, and of on_failure: local. Forced out: MEMORY_MAX_KEYS is too small, and each of these admits its limit again.",
			queries: []query{
				{"sum by (instance) (ratelimitd_memory_keys{$self})", "{{instance}}"},
				{"sum(rate(ratelimitd_memory_forced_out_total{$self}[$__rate_interval]))", "forced out a second"},
			},
		},
	}
}

func nearCache() []panel {
	return []panel{
		{
			title: "Answered without the store", unit: "percentunit", see: "redis.md#near-cache-and-leases",
			help: "Share of operations that remembered rejections and leased hits answered. A fall means more work for Redis: more different keys, or `lease: off`.",
			queries: []query{{
				"sum(rate(ratelimitd_near_cache_hits_total{$self}[$__rate_interval])) / (sum(rate(ratelimitd_near_cache_hits_total{$self}[$__rate_interval])) + " +
					"sum(rate(ratelimitd_backend_ops_total{$self}[$__rate_interval])) > 0)", "of operations",
			}},
		},
		{
			title: "Rejections from memory", unit: "ops", see: "redis.md#near-cache-and-leases",
			help:    "Operations a second that were rejected because the rejection was remembered. High: a client hammers a limit, and Redis does not notice.",
			queries: []query{{"sum by (instance) (rate(ratelimitd_near_cache_rejections_total{$self}[$__rate_interval]))", "{{instance}}"}},
		},
		{
			title: "Keys in the near cache", unit: "short", see: "redis.md#near-cache-and-leases",
			help: "Evictions that grow as fast as hits: NEAR_CACHE_KEYS is too small for the keys that are rejected or hot.",
			queries: []query{
				{"sum by (instance) (ratelimitd_near_cache_entries{$self})", "{{instance}}"},
				{"sum(rate(ratelimitd_near_cache_evictions_total{$self}[$__rate_interval]))", "evicted a second"},
			},
		},
		{
			title: "What becomes of leased hits", unit: "short", see: "redis.md#near-cache-and-leases",
			help: "Hits a second that were taken from the store in advance, spent by requests, refunded, and lost.",
			queries: []query{
				{"sum(rate(ratelimitd_near_cache_leased_total{$self}[$__rate_interval]))", "leased"},
				{"sum(rate(ratelimitd_near_cache_spent_total{$self}[$__rate_interval]))", "spent"},
				{"sum(rate(ratelimitd_near_cache_returned_total{$self}[$__rate_interval]))", "refunded"},
				{"sum(rate(ratelimitd_near_cache_unspent_total{$self}[$__rate_interval]))", "lost"},
			},
		},
		{
			title: "Cost of leasing", unit: "percentunit", see: "redis.md#near-cache-and-leases", warn: 0.005, bad: 0.01,
			help:    "Leased hits that were lost, of those that were spent. Above 1 %: set `lease: off` for the rules in question.",
			queries: []query{{"sum(rate(ratelimitd_near_cache_unspent_total{$self}[$__rate_interval])) / (sum(rate(ratelimitd_near_cache_spent_total{$self}[$__rate_interval])) > 0)", "lost"}},
		},
		{
			title: "Leased hits in hand", unit: "short", see: "redis.md#near-cache-and-leases",
			help:    "To be spent, or on their way back to the store. This is what a crash of the server loses.",
			queries: []query{{"sum by (instance) (ratelimitd_near_cache_held{$self})", "{{instance}}"}},
		},
	}
}

func shedding() []panel {
	return []panel{
		{
			title: "Shed, by reason", kind: areas, unit: "reqps", see: "operate.md#what-to-do-in-an-overload", warn: 1, bad: 10,
			help:    "process: add replicas or cores. store: Redis is at its peak. calls: answers come too late to be of use, and Envoy lets requests pass. waiting: messages do not arrive.",
			queries: []query{{"sum by (reason) (" + shed + ")", "{{reason}}"}},
		},
		{
			title: "Shed, by domain", kind: areas, unit: "reqps", see: "operate.md#what-to-do-in-an-overload",
			help:    "One domain alone: it asks for more than its share. calls and waiting know no domain.",
			queries: []query{{"sum by (domain) (rate(ratelimitd_shed_total{$domains}[$__rate_interval]))", "{{domain}}"}},
		},
		{
			title: "Who waits", unit: "s", see: "operate.md#load", warn: 0.001, bad: 0.002,
			help: "How long calls wait for the process, and operations for the store, on the server where it is worst. Whatever rises first is the bottleneck.",
			queries: []query{
				{"max(ratelimitd_calls_wait_seconds{$self})", "for the process"},
				{"max(ratelimitd_backend_wait_seconds{$self})", "for the store"},
			},
		},
		{
			title: "Calls in progress", unit: "short", see: "operate.md#load",
			help:    "At once, on each server.",
			queries: []query{{"sum by (instance) (ratelimitd_calls{$self})", "{{instance}}"}},
		},
		{
			title: "Calls that may be in progress", unit: "short", see: "operate.md#load",
			help:    "4,096 in quiet times. It falls while the process is busy, and rises again when that is over.",
			queries: []query{{"min by (instance) (ratelimitd_calls_limit{$self})", "{{instance}}"}},
		},
	}
}

func runtime() []panel {
	return []panel{
		{
			title: "Versions", kind: list, see: "admin-api.md#what-a-server-does-now",
			help:    "How many servers run which version. Two for long: a rollout is stuck.",
			queries: []query{{expr: "count by (version, goversion) (ratelimitd_build_info{$self})"}},
		},
		{
			title: "CPU by server", unit: "percentunit", see: "operate.md#load", warn: 0.5, bad: 0.8,
			help:    "Of the cores that it may use.",
			queries: []query{{"rate(process_cpu_seconds_total{$self}[$__rate_interval]) / go_sched_gomaxprocs_threads{$self} $own", "{{instance}}"}},
		},
		{
			title: "Memory by server", unit: "bytes", see: "operate.md#memory",
			help: "Resident, and of that live objects on the heap after the last collection or since. Steady growth of the latter: see /debug/pprof/heap.",
			queries: []query{
				{"process_resident_memory_bytes{$self} $own", "{{instance}}: resident"},
				{"go_memstats_heap_alloc_bytes{$self} $own", "{{instance}}: heap"},
			},
		},
		{
			title: "Garbage collection", unit: "percentunit", see: "operate.md#memory",
			help:    "Share of the time for which it stops everything else. More than a thousandth: GOGC or GOMEMLIMIT are too tight.",
			queries: []query{{"rate(go_gc_duration_seconds_sum{$self}[$__rate_interval]) $own", "{{instance}}"}},
		},
		{
			title: "Goroutines", unit: "short", see: "operate.md#load",
			help:    "They follow calls and connections. Growth without more of these is a bug.",
			queries: []query{{"go_goroutines{$self} $own", "{{instance}}"}},
		},
		{
			title: "Open files", unit: "percentunit", see: "operate.md#ports", warn: 0.7, bad: 0.9,
			help:    "Of those that the process may open (RLIMIT_NOFILE).",
			queries: []query{{"process_open_fds{$self} / process_max_fds{$self} $own", "{{instance}}"}},
		},
		{
			title: "Age of the rules", unit: "s", see: "operate.md#rules",
			help:    "Since they were loaded. Servers that differ for long: one of them does not see the change.",
			queries: []query{{"time() - (ratelimitd_config_loaded_timestamp_seconds{$self} > 0)", "{{instance}}"}},
		},
		{
			title: "Rules that may be stale", unit: "s", see: "operate.md#rules", warn: 60, bad: 600,
			help:    "For how long rules may have differed from their source: new ones were invalid, or the control plane is down. /healthcheck?verbose says why.",
			queries: []query{{"ratelimitd_config_age_seconds{$self}", "{{instance}}"}},
		},
		{
			title: "Loads of rules", kind: areas, unit: "short", see: "operate.md#rules",
			help: "Invalid: the last good rules stay in use, and the log has file, line and reason. `ratelimitd check` finds these before.",
			queries: []query{
				{"sum(increase(runtime_load_attempts{$self}[$__rate_interval])) - sum(increase(ratelimitd_config_load_errors_total{$self}[$__rate_interval]))", "loaded"},
				{"sum(increase(ratelimitd_config_load_errors_total{$self}[$__rate_interval]))", "invalid"},
				{"sum(increase(ratelimitd_config_load_warnings_total{$self}[$__rate_interval]))", "warnings"},
			},
		},
		{
			title: "Servers with a control plane", unit: "short", see: "rules.md#rules-over-xds",
			help:    "How many are connected to it, and how many are not. Only with rules over xDS.",
			queries: []query{{"sum(ratelimitd_xds_connected{$self})", "connected"}, {"count(ratelimitd_xds_connected{$self} == 0)", "not connected"}},
		},
		{
			title: "What the control plane did", unit: "short", see: "rules.md#rules-over-xds",
			help:    "In the last interval. invalid: it sends invalid rules, and the log says what is wrong. empty: it sent no rules at all. Only with rules over xDS.",
			queries: []query{{"sum by (event) (increase(ratelimitd_xds_events_total{$self}[$__rate_interval]))", "{{event}}"}},
		},
		{
			title: "Certificate expires in", unit: "s", see: "security.md#tls", warn: 30 * 24 * 3600, bad: 14 * 24 * 3600, below: true,
			help:    "Of the gRPC listener. Below two weeks it is not being renewed.",
			queries: []query{{"min by (instance) (ratelimitd_certificate_not_after_timestamp_seconds{$self}) - time()", "{{instance}}"}},
		},
		{
			title: "Panics, handshakes and certificates", unit: "short", see: "operate.md#what-to-watch",
			help: "A panic is a bug: the log has the stack, and the process goes on. A failed handshake is a client with a wrong certificate, or a probe without TLS. A certificate that cannot be loaded: the old one stays in use.",
			queries: []query{
				{"sum(increase(ratelimitd_panics_total{$self}[$__rate_interval]))", "panics"},
				{"sum(increase(ratelimitd_tls_handshake_errors_total{$self}[$__rate_interval]))", "failed handshakes"},
				{"sum(increase(certs_load_failures{$self}[$__rate_interval]))", "certificates not loaded"},
			},
		},
	}
}
