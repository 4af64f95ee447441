package xds_test

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// ads is the server side of a state-of-the-world stream.
type ads = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer

// stub is a control plane that a test controls.
type stub struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	sotw  func(ads) error
	delta func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
}

func (s *stub) StreamAggregatedResources(stream ads) error { return s.sotw(stream) }

func (s *stub) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta(stream)
}

// newStub serves a stub on a free port until the test ends.
func newStub(t *testing.T, s *stub, options ...grpc.ServerOption) (address string) {
	t.Helper()
	server := grpc.NewServer(options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	address = serve(t, server)
	t.Cleanup(server.Stop)
	return address
}

// resources wraps messages, with the type URL of rules.
func resources(t *testing.T, messages ...proto.Message) (all []*anypb.Any) {
	t.Helper()
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		all = append(all, raw(string(b)))
	}
	return all
}

func raw(value string) *anypb.Any { return &anypb.Any{TypeUrl: xds.TypeURL, Value: []byte(value)} }

func response(n int, all ...*anypb.Any) *discoveryv3.DiscoveryResponse {
	return &discoveryv3.DiscoveryResponse{VersionInfo: strconv.Itoa(n), Nonce: "n" + strconv.Itoa(n), TypeUrl: xds.TypeURL, Resources: all}
}

// told is the outcome of one response.
type told struct {
	*follower

	problem string // empty for an acknowledgement
}

// tell sends messages in one response, and waits for the answer.
func tell(t *testing.T, messages ...proto.Message) told {
	t.Helper()
	return tellRaw(t, resources(t, messages...)...)
}

func tellRaw(t *testing.T, all ...*anypb.Any) told {
	t.Helper()
	return tellResponse(t, response(1, all...))
}

func tellResponse(t *testing.T, r *discoveryv3.DiscoveryResponse) told {
	t.Helper()
	answers := make(chan *discoveryv3.DiscoveryRequest, 1)
	address := newStub(t, &stub{sotw: func(s ads) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(r); err != nil {
			return err
		}
		q, err := s.Recv()
		if err != nil {
			return err
		}
		select {
		case answers <- q:
		default:
		}
		<-s.Context().Done()
		return nil
	}})
	f := follow(t, xds.Config{Server: address})
	select {
	case q := <-answers:
		invalid := q.GetErrorDetail() != nil
		if q.GetResponseNonce() != r.GetNonce() || q.GetTypeUrl() != xds.TypeURL || (q.GetVersionInfo() == "") != invalid {
			t.Errorf("the answer is %v", q)
		}
		if invalid && q.GetErrorDetail().GetCode() == 0 {
			t.Errorf("a problem with the code OK: %v", q)
		}
		return told{f, q.GetErrorDetail().GetMessage()}
	case <-time.After(4 * testkit.Patience): // the race detector makes large messages slow
		t.Fatalf("no answer\n%s", f.log.String())
		return told{}
	}
}

func TestX2WrongTypeURL(t *testing.T) {
	t.Parallel()
	good := resources(t, config("a", "shop", 3))
	other := response(1, good...)
	other.TypeUrl = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	const want = `its type is "type.googleapis.com/envoy.config.cluster.v3.Cluster": want ` + xds.TypeURL
	if f := tellResponse(t, other); f.problem != "the response: "+want {
		t.Errorf("a response: problem %q", f.problem)
	}
	cluster := &anypb.Any{TypeUrl: other.GetTypeUrl(), Value: good[0].GetValue()}
	if f := tellRaw(t, cluster); f.problem != "a: "+want {
		t.Errorf("a resource: problem %q", f.problem)
	}
}

func TestX2Undecodable(t *testing.T) {
	t.Parallel()
	named := "\x0a\x01a" // name: a
	for _, tt := range []struct{ name, value, want string }{
		{"cut short", named + "\x12\x10shop", "a: it cannot be decoded: it is damaged, or not protobuf"},
		{"no tag", "\xff\xff\xff", "resource 1: it cannot be decoded: it is damaged, or not protobuf"},
		{"cut short below", named + "\x1a\x02\x0a\x05", "a: it cannot be decoded: it is damaged, or not protobuf"},
		{"no UTF-8", named + "\x12\x02\xff\xfe", `a: it cannot be decoded: the text of RateLimitConfig.domain is not UTF-8: "\xff\xfe"`},
		{"no UTF-8 in the name", "\x0a\x02\xff\xfe", "\uFFFD: it cannot be decoded: the text of RateLimitConfig.name is not UTF-8: \"\\xff\\xfe\""},
		{"empty", "", "resource 1: config file cannot have empty domain: set domain to a name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if f := tellRaw(t, raw(tt.value)); f.problem != tt.want {
				t.Errorf("problem %q, want %q", f.problem, tt.want)
			}
		})
	}
}

func TestX2TheOldRulesStay(t *testing.T) {
	t.Parallel()
	wrong := response(2)
	wrong.TypeUrl = "x"
	next := make(chan *discoveryv3.DiscoveryResponse)
	address := newStub(t, &stub{sotw: func(s ads) error {
		for r := range next {
			if err := s.Send(r); err != nil {
				return err
			}
		}
		return nil
	}})
	f := follow(t, xds.Config{Server: address})
	next <- response(1, resources(t, config("a", "shop", 3))...)
	f.wants(t, "shop=3")
	good := f.rules.Rules()
	for _, bad := range []*discoveryv3.DiscoveryResponse{wrong, response(3, raw("\xff"))} {
		before := len(f.outcomes())
		next <- bad
		testkit.Eventually(t, "it was invalid", func() bool { return len(f.outcomes()) > before })
		f.wants(t, "invalid")
		if f.rules.Rules() != good || f.isCurrent() {
			t.Errorf("after %.60v the good rules are gone, or are called current", bad)
		}
	}
	next <- response(4, resources(t, config("a", "shop", 4))...)
	f.wants(t, "shop=4")
	close(next)
}

func TestX4DuplicateNames(t *testing.T) {
	t.Parallel()
	f := tell(t, config("a", "shop", 3), config("a", "mail", 4))
	if f.problem != "" {
		t.Fatalf("problem %q: want none, because envoyproxy/ratelimit takes it too", f.problem)
	}
	f.serves(t, "mail=4 shop=3") // ordered by contents, whatever their order on the stream
	if log := f.log.String(); !strings.Contains(log, "a: warning: a second resource with this name") {
		t.Errorf("no warning in the log:\n%s", log)
	}
}

func TestManyErrorsAreAShortProblem(t *testing.T) {
	t.Parallel()
	m := config("a", "shop", 3)
	for range 1000 {
		m.Descriptors = append(m.Descriptors, m.Descriptors[0])
	}
	if f := tell(t, m); len(f.problem) > 9<<10 || !strings.HasPrefix(f.problem, "a: shop.k: duplicate") {
		t.Errorf("a problem of %d bytes: %.100q", len(f.problem), f.problem)
	}
}

// TestVersionsAndNoncesOfAnswers: answers on a stream have no nonces or versions of another stream, and the version in
// a problem is the last good set's.
func TestVersionsAndNoncesOfAnswers(t *testing.T) {
	t.Parallel()
	good, bad := resources(t, config("a", "shop", 3)), resources(t, config("a", "", 3))
	var got []string
	streams := make(chan []string, 2)
	address := newStub(t, &stub{sotw: func(s ads) error {
		var seen []string
		for i, r := range []*discoveryv3.DiscoveryResponse{nil, response(1, good...), response(2, bad...), response(3, good...)} {
			if r != nil {
				if err := s.Send(r); err != nil {
					return err
				}
			}
			q, err := s.Recv()
			if err != nil {
				return err
			}
			if q.GetNode().GetId() != "here" || q.GetNode().GetMetadata().GetFields()["zone"].GetStringValue() != "eu" {
				return errors.New("who is this?")
			}
			seen = append(seen, strconv.Itoa(i)+":"+q.GetVersionInfo()+"/"+q.GetResponseNonce())
		}
		select {
		case streams <- seen:
		default:
		}
		return io.ErrUnexpectedEOF
	}})
	f := follow(t, xds.Config{Server: address, NodeID: "here", NodeMetadata: map[string]string{"zone": "eu"}})
	for range 2 {
		select {
		case got = <-streams:
		case <-time.After(testkit.Patience):
			t.Fatalf("no stream\n%s", f.log.String())
		}
		if all := strings.Join(got, " "); all != "0:/ 1:1/n1 2:1/n2 3:3/n3" {
			t.Errorf("requests %s", all)
		}
	}
}

func TestTooManyResources(t *testing.T) {
	t.Parallel()
	all := make([]*anypb.Any, 10_001)
	for i := range all {
		all[i] = raw("")
	}
	if f := tellRaw(t, all...); f.problem != "the response: the control plane has more than 10000 resources, or 268435456 bytes of them" {
		t.Errorf("problem %.300q", f.problem)
	}
}

// TestTooManyChanges: more changes than the limit end the stream. They clear the held resources, which does not count
// as an empty set.
func TestTooManyChanges(t *testing.T) {
	t.Parallel()
	many := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.TypeURL, Nonce: "2"}
	for i := range 10_001 {
		many.Resources = append(many.Resources, &discoveryv3.Resource{Name: strconv.Itoa(i), Resource: raw("")})
	}
	one := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.TypeURL, Nonce: "1", Resources: []*discoveryv3.Resource{
		{Name: "a", Resource: resources(t, config("a", "shop", 3))[0]},
	}}
	var streams atomic.Int32
	address := newStub(t, &stub{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		second := streams.Add(1)%2 == 0
		for _, r := range []*discoveryv3.DeltaDiscoveryResponse{one, many} {
			if _, err := s.Recv(); err != nil { // the first request, and the answer to the first response
				return err
			}
			if second {
				return errors.New("not now") // held resources, if any, are still processed
			}
			if err := s.Send(r); err != nil {
				return err
			}
		}
		<-s.Context().Done()
		return nil
	}})
	f := follow(t, xds.Config{Server: address, Delta: true})
	testkit.Eventually(t, "four streams have ended", func() bool { return f.count(xds.EventDisconnected) >= 4 })
	for _, load := range f.outcomes() {
		if load == "" {
			t.Errorf("loads %q: the rules were gone", f.outcomes())
		}
	}
	f.serves(t, "shop=3")
}
