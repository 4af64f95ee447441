package main

// The rows about requests: what comes, what is rejected and why, and what operators and plans have to do with that.

// Times after which answers are late: Envoy's filter gives up after 20 ms, unless it is told otherwise, and RateLimitSlow is an alert
// for more than 10.
const (
	slow    = 0.010
	tooSlow = 0.020
)

const (
	// known are the servers that can be scraped, 1, and those that could be within a day, 0.
	known    = `up{$self} and on (namespace, job, instance) last_over_time(ratelimitd_build_info{$self}[1d])`
	answered = `rate(ratelimit_service_total_requests{$self, grpc_method="ShouldRateLimit"}[$__rate_interval])`
	answerIn = `rate(ratelimit_service_response_time_seconds_bucket{$self, grpc_method="ShouldRateLimit"}[$__rate_interval])`
	tripIn   = `rate(ratelimitd_backend_call_seconds_bucket{$self}[$__rate_interval])`
	hits     = `rate(ratelimit_service_rate_limit_total_hits{$rules}[$__rate_interval])`

	// rejected are decisions, not hits: hits over the limit include late charges and shadow mode, which reject nothing.
	rejected = `rate(ratelimitd_decisions_total{$domains, verdict="over_limit"}[$__rate_interval])`
	asked    = `rate(ratelimitd_decisions_total{$domains, verdict!="late_charge"}[$__rate_interval])`
	failed   = `rate(ratelimitd_backend_errors_total{$self}[$__rate_interval])`
	shed     = `rate(ratelimitd_shed_total{$self}[$__rate_interval])`
)

// glance is what an operator sees first: two columns each about the traffic, this service and its store.
func glance() []panel {
	return []panel{
		{
			title: "How to read this", kind: words, width: 14, high: 5,
			help: "- **Only *Traffic* differs from usual**: clients. Red *rejected* alone means that limits do what they are for; *Rejections* says which.\n" +
				"- ***Us* is red, *Store* is not**: more comes than these servers decide in time, or they are throttled. Add replicas or cores; see *Shedding*.\n" +
				"- ***Store* is red**: Redis or memcached, or the way to it. `on_failure` decides meanwhile; see *Store*.\n" +
				"- **Answers fail and nothing else is red**: rules or clients; see *Errors by kind* and *Runtime and rules*.",
		},
		{
			title: "Alerts that are firing", kind: list, width: 10, high: 5, see: "operate.md#dashboards-and-alerts", none: "none",
			help:    "Alerts of deploy/grafana/rules.yaml, where Prometheus evaluates them. Each has a link to what to do.",
			queries: []query{{expr: `count by (alertname, severity, job) (ALERTS{alertname=~"RateLimit.+", alertstate="firing"})`}},
		},
		{
			title: "Traffic: requests", kind: number, unit: "reqps", see: "operate.md#load", none: "none",
			help:    "Calls of ShouldRateLimit a second. Compare with the hours before: a surge shows here first, and a gap is a proxy that does not ask.",
			queries: []query{{expr: "sum(" + answered + ")"}},
		},
		{
			title: "Traffic: requests rejected", kind: number, unit: "percentunit", see: "admin-api.md#the-busiest-and-the-most-rejected", none: "no requests", warn: 0.2, bad: 0.5,
			help:    "Share of requests that a rule rejected. High with usual traffic: a limit is too low, or new rules are wrong. High with much traffic: limits hold.",
			queries: []query{{expr: "sum(" + rejected + ") / (sum(" + asked + ") > 0)"}},
		},
		{
			title: "Us: servers that answer", kind: number, see: "operate.md#health", warn: 0.99, bad: 0.5, below: true, unit: "percentunit",
			help:    "Share of the servers known to Prometheus that it can scrape; those that it could not for a day are forgotten. Below 100 %: see why pods or machines are gone.",
			queries: []query{{expr: "avg(" + known + ")"}},
		},
		{
			title: "Us: wait for this process", kind: number, unit: "s", see: "operate.md#load", warn: 0.001, bad: 0.002,
			help:    "How long calls wait for their turn, on the server where it is worst. Above 1 ms that server is near its peak: see Us: shed, and add replicas or cores.",
			queries: []query{{expr: "max(ratelimitd_calls_wait_seconds{$self})"}},
		},
		{
			title: "Store: breaker", kind: number, see: "redis.md#when-redis-fails", warn: 1, bad: 2, none: "no store",
			states:  map[string]string{"0": "closed", "1": "probing", "2": "open"},
			help:    "The worst breaker of any server. Open: the store does not answer in time or is not reachable, and on_failure decides. Look at Redis and the network.",
			queries: []query{{expr: "max(ratelimitd_backend_breaker_state{$self})"}},
		},
		{
			title: "Store: wait for a node", kind: number, unit: "s", see: "operate.md#load", warn: 0.001, bad: 0.002, none: "no store",
			help:    "How long an operation waits for the busiest node of Redis. Above 2 ms that node is near its peak: a core of its own, or a cluster.",
			queries: []query{{expr: "max(ratelimitd_backend_wait_seconds{$self})"}},
		},
		{
			title: "Traffic: answers that fail", kind: number, unit: "percentunit", see: "runbooks.md#ratelimiterrors", none: "no calls", warn: 0.0001, bad: 0.001,
			help:    "Share of calls that end in an error instead of a decision. Envoy lets their requests pass, unless failure_mode_deny is true.",
			queries: []query{{expr: "sum(rate(ratelimitd_call_errors_total{$self}[$__rate_interval])) / (sum(" + answered + ") > 0)"}},
		},
		{
			title: "Traffic: slowest 1 %", kind: number, unit: "s", see: "operate.md#load", none: "no calls", warn: slow, bad: tooSlow,
			help:    "99th percentile of the time to answer. Envoy's filter gives up after 20 ms. Red here: look to the right for whose time it is.",
			queries: []query{{expr: "histogram_quantile(0.99, sum by (le) (" + answerIn + ")) > 0"}},
		},
		{
			title: "Us: CPU of the busiest", kind: number, unit: "percentunit", see: "operate.md#load", warn: 0.5, bad: 0.8,
			help:    "Of the cores that a server may use, on the one where it is most. Above half there is no room for the loss of a replica.",
			queries: []query{{expr: "max(rate(process_cpu_seconds_total{$self}[$__rate_interval]) / go_sched_gomaxprocs_threads{$self} $own)"}},
		},
		{
			title: "Us: shed", kind: number, unit: "reqps", see: "operate.md#what-to-do-in-an-overload", warn: 1, bad: 10,
			help:    "Requests a second that on_failure decides, or that fail with an error, since this process cannot decide them in time.",
			queries: []query{{expr: `sum(rate(ratelimitd_shed_total{$self, reason!="store"}[$__rate_interval]))`}},
		},
		{
			title: "Store: slowest 1 %", kind: number, unit: "s", see: "redis.md#when-redis-fails", none: "no store", warn: 0.005, bad: slow,
			help:    "99th percentile of a round trip to the store. After 50 ms Redis counts as silent, and Envoy's filter gives up sooner.",
			queries: []query{{expr: "histogram_quantile(0.99, sum by (le) (" + tripIn + ")) > 0"}},
		},
		{
			title: "Store: failed operations", kind: number, unit: "ops", see: "redis.md#when-redis-fails", none: "no store", warn: 0.1, bad: 1,
			help:    "Operations a second that failed in the store, and that on_failure decides. Errors by class, in the row Store, says why.",
			queries: []query{{expr: "sum(" + failed + ")"}},
		},
	}
}

func traffic() []panel {
	return []panel{
		{
			title: "Requests by server", kind: areas, unit: "reqps", see: "operate.md#load",
			help:    "Calls of ShouldRateLimit. One server with far more than the others: clients do not balance over the addresses of the service.",
			queries: []query{{"sum by (instance) (" + answered + ")", "{{instance}}"}},
		},
		{
			title: "Time to answer", unit: "s", see: "operate.md#load", warn: slow, bad: tooSlow,
			help: "The histogram begins at 5 ms: below that these are estimates. Compare with Round trips to the store and with Who waits, which say whose time it is.",
			queries: []query{
				{"histogram_quantile(0.5, sum by (le) (" + answerIn + "))", "half of them within"},
				{"histogram_quantile(0.99, sum by (le) (" + answerIn + "))", "99 % within"},
			},
		},
		{
			title: "Time to answer, each call", kind: heat, unit: "s", see: "operate.md#load",
			help:    "How many calls took how long. Two bands: some wait for something that others do not need, such as the store.",
			queries: []query{{"sum by (le) (increase(ratelimit_service_response_time_seconds_bucket{$self, grpc_method=\"ShouldRateLimit\"}[$__rate_interval]))", "{{le}}"}},
		},
		{
			title: "Hits by domain", kind: areas, unit: "short", see: "operate.md#what-to-watch",
			help:    "Hits a second that requests asked for, admitted or not. A request counts once for each descriptor that has a limit, and as often as it says.",
			queries: []query{{"sum by (domain) (" + hits + ")", "{{domain}}"}},
		},
		{
			title: "Busiest rules", unit: "short", see: "admin-api.md#the-busiest-and-the-most-rejected",
			help:    "The ten rules with most hits a second. `ratelimitd top` says which descriptors they are.",
			queries: []query{{"topk(10, sum by (domain, key1, key2) (" + hits + "))", "{{domain}} {{key1}} {{key2}}"}},
		},
		{
			title: "Errors by kind", kind: areas, unit: "reqps", see: "runbooks.md#ratelimiterrors", warn: 0.1, bad: 1,
			help:    "redis_error: the store failed, and the rule's on_failure is error. service_error: the request cannot be answered, or there are no rules.",
			queries: []query{{"sum by (err_type) (rate(ratelimitd_call_errors_total{$self}[$__rate_interval]))", "{{err_type}}"}},
		},
		{
			title: "Hits without a limit, and refunded", unit: "short", see: "operate.md#what-to-watch",
			help: "Hits of rules with unlimited: true, and hits that requests refunded. A rise of the first after new rules: something lost its limit.",
			queries: []query{
				{"sum(rate(ratelimitd_unlimited_hits_total{$rules}[$__rate_interval]))", "unlimited"},
				{"sum(rate(ratelimit_service_rate_limit_total_negative_hits{$rules}[$__rate_interval]))", "refunded"},
			},
		},
		{
			title: "Requests for domains without rules", unit: "reqps", see: "operate.md#rules",
			help: "Descriptors of domains without rules: they are not limited. A misspelt domain in Envoy, or rules that are not loaded.",
			queries: []query{{
				`sum by (unknown) (rate(label_replace({__name__=~"ratelimit_service_rate_limit_.+_domain_not_found", $self}, ` +
					`"unknown", "$1", "__name__", "ratelimit_service_rate_limit_(.+)_domain_not_found")[1m:5s]))`, "{{unknown}}",
			}},
		},
		{
			title: "Connections of clients", unit: "short", see: "operate.md#ports",
			help: "Open gRPC connections, and those that were closed a minute to make room. Closed ones: clients open too many, or GRPC_ADDRESS_SHARE is too small for a proxy.",
			queries: []query{
				{"sum by (instance) (ratelimitd_connections{$self})", "{{instance}}"},
				{"60 * sum by (reason) (rate(ratelimitd_connections_closed_total{$self}[$__rate_interval]))", "closed a minute: {{reason}}"},
			},
		},
	}
}

func rejections() []panel {
	return []panel{
		{
			title: "Requests rejected, by domain", kind: areas, unit: "reqps", see: "admin-api.md#the-busiest-and-the-most-rejected",
			help:    "Requests that a rule rejected. A step after new rules (blue lines): `ratelimitd diff` says what they changed.",
			queries: []query{{"sum by (domain) (" + rejected + ")", "{{domain}}"}},
		},
		{
			title: "Share rejected, by domain", unit: "percentunit", see: "admin-api.md#the-busiest-and-the-most-rejected", warn: 0.2, bad: 0.5,
			help:    "The ten domains that reject most of what they are asked for. Near 100 % with few clients: one of them is in a loop, or the limit is too low.",
			queries: []query{{"topk(10, sum by (domain) (" + rejected + ") / (sum by (domain) (" + asked + ") > 0))", "{{domain}}"}},
		},
		{
			title: "Rules that reject most", unit: "reqps", see: "admin-api.md#the-busiest-and-the-most-rejected",
			help:    "Requests rejected a second. `ratelimitd top --rejected` says whose they are; `ratelimitd block` and `ratelimitd allow` decide for one of them.",
			queries: []query{{"topk(10, sum by (domain, key1, key2) (rate(ratelimitd_rejections_total{$rules}[$__rate_interval])))", "{{domain}} {{key1}} {{key2}}"}},
		},
		{
			title: "Hits near the limit, by domain", kind: areas, unit: "short", see: "operate.md#what-to-watch",
			help:    "Admitted, but above NEAR_LIMIT_RATIO of the limit: rejections come next.",
			queries: []query{{"sum by (domain) (rate(ratelimit_service_rate_limit_near_limit{$rules}[$__rate_interval]))", "{{domain}}"}},
		},
		{
			title: "Requests by what decided them", unit: "reqps", see: "operate.md#what-to-watch",
			help: "shadow: it would be rejected without shadow mode, which is meant for a trial and protects nothing. late_charge: a charge for a request that has run. " +
				"fallback: on_failure decided. control: an operator did.",
			queries: []query{
				{`sum by (verdict) (rate(ratelimitd_decisions_total{$domains, verdict!="ok"}[$__rate_interval]))`, "{{verdict}}"},
				{"sum(rate(ratelimit_service_global_shadow_mode{$self}[$__rate_interval]))", "SHADOW_MODE"},
			},
		},
		{
			title: "Limits of requests that were ignored", unit: "short", see: "operate.md#what-to-watch",
			help:    "Requests brought limits along. not_allowed: the domain needs allow_limit_override: true. invalid: the limit makes no sense.",
			queries: []query{{"sum by (domain, reason) (rate(ratelimitd_override_ignored_total{$domains}[$__rate_interval]))", "{{domain}}: {{reason}}"}},
		},
		{
			title: "Limits of the rules", kind: list, width: 24, see: "operate.md#rules",
			help:    "What each rule allows per unit, whatever a control says. Of the first 1,000 rules.",
			queries: []query{{expr: `max by (rule, limit, unit, algorithm) (ratelimitd_rule_limit{$self, rule=~"$domain\\.$rule(\\..+)?"})`}},
		},
	}
}

func controls() []panel {
	return []panel{
		{
			title: "Controls in force", unit: "short", see: "admin-api.md#controls",
			help:    "What operators have put above the rules. Forgotten ones: `ratelimitd controls` says who made them and why, `ratelimitd lift` ends them.",
			queries: []query{{"max by (kind) (ratelimitd_controls{$self})", "{{kind}}"}},
		},
		{
			title: "Decisions by control", unit: "short", see: "admin-api.md#controls",
			help:    "Descriptors a second that a control decided, or whose limit it set. None for long: the control may no longer be needed.",
			queries: []query{{"sum by (control, kind) (rate(ratelimitd_control_decisions_total{$self}[$__rate_interval]))", "{{kind}} {{control}}"}},
		},
		{
			title: "Changes by operators", kind: areas, unit: "short", see: "admin-api.md#audit",
			help: "Calls of the admin API in the last interval, and those denied for want of a token. `ratelimitd audit` has who, what and why.",
			queries: []query{
				{"sum by (method, result) (increase(ratelimitd_admin_changes_total{$self}[$__rate_interval]))", "{{method}}: {{result}}"},
				{"sum(increase(ratelimitd_admin_denied_total{$self}[$__rate_interval]))", "denied"},
			},
		},
		{
			title: "Limits set by controls", kind: list, width: 16, see: "admin-api.md#controls",
			help:    "The limits in force in place of those of the rules.",
			queries: []query{{expr: "max by (control, domain, rule, limit, unit) (ratelimitd_control_limit{$domains})"}},
		},
		{
			title: "Callers that watch", unit: "short", see: "admin-api.md#live-decisions",
			help:    "`ratelimitd watch` and the console's live page. Watching costs something while there are any.",
			queries: []query{{"sum by (instance) (ratelimitd_watchers{$self})", "{{instance}}"}},
		},
		{
			title: "Reservations by outcome", unit: "short", see: "llm-budgets.md#operating-reservations",
			help:    "unknown: settled twice or too late, ttl is too short. expired: not settled. forged: replicas with different keys, or a client makes ids up. unrecorded: a counter has 10,000 open.",
			queries: []query{{"sum by (domain, outcome) (rate(ratelimitd_reservations_total{$domains}[$__rate_interval]))", "{{domain}}: {{outcome}}"}},
		},
		{
			title: "Hits reserved now", unit: "short", see: "llm-budgets.md#operating-reservations",
			help:    "By rule: what requests under way hold of their budgets. Rising without an end: reservations are not settled.",
			queries: []query{{"sum by (rule) (ratelimitd_reserved_hits{$self})", "{{rule}}"}},
		},
		{
			title: "Hits reserved, refunded, charged", unit: "short", see: "llm-budgets.md#operating-reservations",
			help:    "Much refunded: estimates are too high, and requests are rejected that would fit. Much charged: they are too low, and budgets are exceeded for a while.",
			queries: []query{{"sum by (domain, action) (rate(ratelimitd_reservation_hits_total{$domains}[$__rate_interval]))", "{{domain}}: {{action}}"}},
		},
		{
			title: "Tenants", unit: "short", see: "tenants.md#the-table",
			help: "Tenants on a plan, and those on a plan that no rule has, which get the default. Loads that were invalid: the last good table stays, and the log says what is wrong.",
			queries: []query{
				{"max by (source) (ratelimitd_tenants{$self})", "{{source}}"},
				{"max by (source) (ratelimitd_tenants_unknown_plan{$self})", "{{source}}: unknown plan"},
				{`sum(increase(ratelimitd_tenants_loads_total{$self, result="invalid"}[$__rate_interval]))`, "invalid loads"},
			},
		},
	}
}
