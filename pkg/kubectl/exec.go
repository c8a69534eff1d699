package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// runner returns how programs are run in Carve's Pods: by the API server, over a WebSocket.
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
			return "", fmt.Errorf("run %s in Pod %s: %w: %s", argv[0], pod, err, strings.TrimSpace(stderr.String()))
		}
		return stdout.String(), nil
	}
}
