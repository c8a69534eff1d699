package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// runner returns a function that runs programs in Carve's Pods, by a WebSocket through the API
// server.
func (p *plugin) runner(config *rest.Config, client kubernetes.Interface) run {
	return func(ctx context.Context, pod, container string, argv ...string) (string, error) {
		request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.carve).Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: container, Command: argv, Stdout: true, Stderr: true}, scheme.ParameterCodec)
		executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
		if err != nil {
			return "", fmt.Errorf("run a program in Pod %s: %w", pod, err)
		}
		var stdout, stderr bytes.Buffer
		if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
			if ctx.Err() != nil {
				return "", fmt.Errorf("run %s in Pod %s: %w", argv[0], pod, err) // the stream may still write to stderr
			}
			return "", fmt.Errorf("run %s in Pod %s: %w: %s", argv[0], pod, err, strings.TrimSpace(stderr.String()))
		}
		return stdout.String(), nil
	}
}

const (
	// askTimeout limits the time for one agent, so that one that does not answer leaves time for
	// the others.
	askTimeout  = 10 * time.Second
	askedAtOnce = 8
)

// Errors of asking a node's agent.
var (
	ErrNotAsked = errors.New("it was not asked")
	ErrNoAnswer = fmt.Errorf("it did not answer within %v", askTimeout)
)

type answer[T any] struct {
	node, pod string
	value     T
	err       error
}

// ask asks all agents, several at a time, and returns the answers sorted by node.
func ask[T any](ctx context.Context, s *snapshot, question func(ctx context.Context, node, pod string) (T, error)) []answer[T] {
	nodes := map[string]*corev1.Node{}
	for i := range s.nodes {
		nodes[s.nodes[i].Name] = &s.nodes[i]
	}
	answers := make([]answer[T], len(s.agents))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, name := range slices.Sorted(maps.Keys(s.agents)) {
		agent, a := s.agents[name], &answers[i]
		a.node, a.pod = name, agent.Name
		if a.err = askable(nodes[name], &agent); a.err != nil {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, ErrNoAnswer)
			defer cancel()
			a.value, a.err = question(ctx, name, agent.Name)
			if a.err != nil && errors.Is(context.Cause(ctx), ErrNoAnswer) {
				a.err = ErrNoAnswer
			}
			if a.err != nil && !isReady(&agent) {
				a.err = fmt.Errorf("its agent is not ready: %w", a.err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return answers
}

// askable returns ErrNotAsked with a reason if a node's lvmd cannot answer. An lvmd that runs but
// is not ready can: it reports which of its device classes do not respond.
func askable(node *corev1.Node, agent *corev1.Pod) error {
	var reason string
	runs := slices.ContainsFunc(agent.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "lvmd" && c.State.Running != nil })
	switch {
	case node == nil:
		reason = "Pod " + agent.Name + " is on no node that exists"
	case !nodeReady(node):
		reason = "the node is not ready"
	case !runs && !isReady(agent):
		reason = "its agent is not ready, and lvmd does not run"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNotAsked, reason)
}
