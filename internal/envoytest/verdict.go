package envoytest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Stats are the counters of the rate-limit filter, which Envoy has as cluster.<cluster>.ratelimit.<stat_prefix>.ok and so on.
type Stats struct {
	OK      int // answered, and not over the limit
	Over    int // over_limit: refused
	Error   int // no answer, or not in time
	Allowed int // failure_mode_allowed: of Error those that were let pass
}

// headers adds what the filter tells the caller of an answer to its call.
func (s *Stream) headers(to http.Header, answer *rlsv3.RateLimitResponse) {
	if s.Config.GetEnableXRatelimitHeaders() != 0 {
		rateLimitHeaders(to, answer.GetStatuses())
	}
	if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		if !s.Config.GetDisableXEnvoyRatelimitedHeader() {
			to.Set("x-envoy-ratelimited", "true")
		}
		if s.Config.GetEnableRetryAfterHeader() {
			retryAfter(to, answer.GetStatuses())
		}
	}
	asHeader(to, answer.GetResponseHeadersToAdd())
}

// rateLimitHeaders adds the headers of the third draft: of the limit of which the least is left, and all policies.
func rateLimitHeaders(to http.Header, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) {
	var least *rlsv3.RateLimitResponse_DescriptorStatus
	var policies strings.Builder
	for _, s := range statuses {
		if s.GetCurrentLimit() == nil {
			continue
		}
		if least == nil || s.GetLimitRemaining() < least.GetLimitRemaining() {
			least = s
		}
		if w := window(s.GetCurrentLimit().GetUnit()); w > 0 {
			fmt.Fprintf(&policies, ", %d;w=%d", s.GetCurrentLimit().GetRequestsPerUnit(), w)
			if name := s.GetCurrentLimit().GetName(); name != "" {
				fmt.Fprintf(&policies, ";name=%q", name)
			}
		}
	}
	if least == nil {
		return
	}
	to.Set("x-ratelimit-limit", strconv.FormatUint(uint64(least.GetCurrentLimit().GetRequestsPerUnit()), 10)+policies.String())
	to.Set("x-ratelimit-remaining", strconv.FormatUint(uint64(least.GetLimitRemaining()), 10))
	to.Set("x-ratelimit-reset", strconv.FormatInt(least.GetDurationUntilReset().GetSeconds(), 10))
}

// retryAfter adds the longest time until a limit that was exceeded has something left, at least a second.
func retryAfter(to http.Header, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) {
	longest := int64(-1)
	for _, s := range statuses {
		if s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			longest = max(longest, s.GetDurationUntilReset().GetSeconds(), 1)
		}
	}
	if longest > 0 {
		to.Set("retry-after", strconv.FormatInt(longest, 10))
	}
}

// window returns the seconds of a unit.
func window(unit rlsv3.RateLimitResponse_RateLimit_Unit) int {
	const minute, hour, day = 60, 3600, 86400
	return map[rlsv3.RateLimitResponse_RateLimit_Unit]int{
		rlsv3.RateLimitResponse_RateLimit_SECOND: 1,
		rlsv3.RateLimitResponse_RateLimit_MINUTE: minute,
		rlsv3.RateLimitResponse_RateLimit_HOUR:   hour,
		rlsv3.RateLimitResponse_RateLimit_DAY:    day,
		rlsv3.RateLimitResponse_RateLimit_WEEK:   7 * day,
		rlsv3.RateLimitResponse_RateLimit_MONTH:  30 * day,
		rlsv3.RateLimitResponse_RateLimit_YEAR:   365 * day,
	}[unit]
}
