package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// session is an open stream of one of the two protocols.
type session struct {
	receive func() (response, error)
	answer  func(a answer) error
}

// response is a response from a stream, in the same form for both protocols.
type response struct {
	nonce, version string
	typeURL        string
	whole          bool       // resources has all resources that exist
	resources      []resource // unless whole, those that are new or have changed
	removed        []string   // names
}

// answer is the answer to a response: an acknowledgement if there is no problem.
type answer struct {
	nonce, problem string
	accepted       string // the version of the last response on this stream that was not invalid
}

// stream opens a stream and follows it until it ends.
func (c *Client) stream(ctx context.Context) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // no error of it would matter any more
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(c.config.Headers)))
	var both sync.WaitGroup
	defer both.Wait()
	defer cancel()
	s, err := c.open(ctx, conn)
	if err != nil {
		return err
	}
	c.config.Hooks.Waiting(fmt.Sprintf("the control plane at %s has sent nothing for node %q", c.config.Server, c.config.NodeID))
	f := following{Client: c, responses: make(chan response), out: newOutbox()}
	failed := make(chan error, 2)
	both.Go(func() { failed <- read(ctx, s, f.responses) })
	both.Go(func() { failed <- f.out.send(ctx, s) })
	return f.run(ctx, failed)
}

func (c *Client) node() *corev3.Node {
	n := &corev3.Node{Id: c.config.NodeID}
	if len(c.config.NodeMetadata) > 0 {
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for k, v := range c.config.NodeMetadata {
			n.Metadata.Fields[k] = structpb.NewStringValue(v)
		}
	}
	return n
}

// open opens a stream and asks for everything.
func (c *Client) open(ctx context.Context, conn *grpc.ClientConn) (session, error) {
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if c.config.Delta {
		stream, err := client.DeltaAggregatedResources(ctx)
		if err != nil {
			return session{}, err
		}
		return c.delta(stream)
	}
	stream, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return session{}, err
	}
	return c.sotw(stream)
}

// sotw returns the session of a state-of-the-world stream.
func (c *Client) sotw(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient) (session, error) {
	node := c.node()
	s := session{
		receive: func() (response, error) {
			m, err := stream.Recv()
			if err != nil {
				return response{}, err
			}
			r := response{nonce: m.GetNonce(), version: m.GetVersionInfo(), typeURL: m.GetTypeUrl(), whole: true}
			for _, a := range m.GetResources() {
				r.resources = append(r.resources, resource{typeURL: a.GetTypeUrl(), value: a.GetValue()})
			}
			return r, nil
		},
		answer: func(a answer) error {
			return stream.Send(&discoveryv3.DiscoveryRequest{
				Node: node, TypeUrl: TypeURL, VersionInfo: a.accepted, ResponseNonce: a.nonce, ErrorDetail: detail(a.problem).Proto(),
			})
		},
	}
	return s, sent(s.answer(answer{}))
}

// delta returns the session of a delta stream. It begins with the names of what is held, with versions that no resource
// has, so that the control plane sends every resource again, and says which of them are gone.
func (c *Client) delta(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) (session, error) {
	node := c.node()
	s := session{
		receive: func() (response, error) {
			m, err := stream.Recv()
			if err != nil {
				return response{}, err
			}
			r := response{nonce: m.GetNonce(), version: m.GetSystemVersionInfo(), typeURL: m.GetTypeUrl(), removed: m.GetRemovedResources()}
			for _, w := range m.GetResources() {
				if w.GetResource() == nil && w.GetTtl() != nil {
					continue // only its TTL is extended
				}
				r.resources = append(r.resources, resource{name: w.GetName(), typeURL: w.GetResource().GetTypeUrl(), value: w.GetResource().GetValue()})
			}
			return r, nil
		},
		answer: func(a answer) error {
			return stream.Send(&discoveryv3.DeltaDiscoveryRequest{
				Node: node, TypeUrl: TypeURL, ResponseNonce: a.nonce, ErrorDetail: detail(a.problem).Proto(),
			})
		},
	}
	return s, sent(stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: TypeURL, InitialResourceVersions: c.held.names()}))
}

// sent returns the error of a first request, unless it only says that the stream has ended: receiving gives the better
// error for that.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// detail returns a problem in the protocol's form. For an acknowledgement it is nil, whose Proto is nil too.
func detail(problem string) *status.Status {
	if problem == "" {
		return nil
	}
	return status.New(codes.InvalidArgument, problem)
}
