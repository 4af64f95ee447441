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

// response is a response of either protocol.
type response struct {
	nonce, version string
	typeURL        string
	complete       bool       // resources is complete
	resources      []resource // unless whole, only new and changed ones
	removed        []string   // names
}

// answer answers a response: an acknowledgement if problem is empty.
type answer struct {
	nonce, problem string
	accepted       string // version of the last valid response on this stream
}

// stream opens a stream and follows it until it ends.
func (c *Client) stream(ctx context.Context) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the error does not matter
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

// open opens a stream and requests all resources.
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

// sotw returns a session of the state-of-the-world protocol.
func (c *Client) sotw(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient) (session, error) {
	node := c.node()
	s := session{
		receive: func() (response, error) {
			m, err := stream.Recv()
			if err != nil {
				return response{}, err
			}
			r := response{nonce: m.GetNonce(), version: m.GetVersionInfo(), typeURL: m.GetTypeUrl(), complete: true}
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

// delta returns a session of the delta protocol. It starts with the names of held resources and versions that no
// resource has, so that the control plane sends every resource again and reports removed ones.
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
					continue // only extends its TTL
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

// sent returns the error of a first request, except for io.EOF: receiving returns a better error.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// detail returns a problem in the protocol's form, or nil for an acknowledgement.
func detail(problem string) *status.Status {
	if problem == "" {
		return nil
	}
	return status.New(codes.InvalidArgument, problem)
}
