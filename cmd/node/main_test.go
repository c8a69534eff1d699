package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestBadFlagsAreRefused(t *testing.T) {
	tests := []struct {
		name, words string
		args        []string
	}{
		{"no node name", "--node-name is required", nil},
		{"an unknown flag", "unknown flag: --nope", []string{"--nope"}},
		{"an argument", `unknown command "what"`, []string{"what"}},
		{"a relative kubelet directory", `kubelet directory "kubelet"`, []string{"--node-name=n", "--kubelet-dir=kubelet"}},
		{"a negative limit", "maximum number of volumes -1", []string{"--node-name=n", "--max-volumes=-1"}},
		{"a negative size of the smallest volume", "smallest volume -1024: allowed", []string{"--node-name=n", "--smallest-volume=-1Ki"}},
		{"a limit that is no quantity", "--inline-max-size", []string{"--node-name=n", "--inline-max-size=much"}},
		{"a negative limit of inline sizes", "largest size of inline volumes -1024: allowed", []string{"--node-name=n", "--inline-max-size=-1Ki"}},
		{"an unknown log level", "--log-level", []string{"--node-name=n", "--log-level=loud"}},
		{"mounts that the host does not see", "/k/pods is not shared", []string{"--node-name=n", "--kubelet-dir=/k", "--ops-listen="}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := command(system{reduce: func() error { return nil }, shared: func(dir string) error { return errors.New(dir + " is not shared") }})
			c.SetArgs(tt.args)
			err := c.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("got %v, want %q", err, tt.words)
			}
		})
	}
}

func TestInlineVolumesAreLimitedUnlessAnAdministratorSaysOtherwise(t *testing.T) {
	flag := command(system{}).Flags().Lookup("inline-max-size")
	if flag.DefValue != "10Gi" || flag.Value.String() != "10Gi" {
		t.Errorf("the limit is %s, described as %s, want 10Gi", flag.Value, flag.DefValue)
	}
	must.Succeed(t, flag.Value.Set("0"))
	if flag.Value.String() != "0" {
		t.Errorf("a limit that was switched off is %s", flag.Value)
	}
}

func TestASocketInNoDirectoryIsRefused(t *testing.T) {
	c := command(system{reduce: func() error { return nil }, shared: func(string) error { return nil }})
	c.SetArgs([]string{"--node-name=n", "--csi-socket=/no/such/directory/csi.sock", "--ops-listen="})
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "CSI socket") {
		t.Errorf("got %v", err)
	}
}

func TestItIsReadyOnceRegisteredAndStops(t *testing.T) {
	m := drivertest.NewFakeMachine(t)
	address := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var shared []string
	c := command(system{
		reduce: func() error { return nil },
		shared: func(dir string) error { shared = append(shared, dir); return nil },
	})
	c.SetArgs([]string{
		"--node-name=node-1", "--kubelet-dir=" + m.KubeletDir, "--csi-socket=" + m.CSISocket(),
		"--registration-dir=" + filepath.Dir(m.RegistrationSocket()), "--lvmd-socket=" + m.LVMDSocket(), "--ops-listen=" + address,
		"--log-level=error",
	})
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()

	wantAnswer(t, address, "/healthz", http.StatusOK, "ok")
	wantReady(t, address, http.StatusServiceUnavailable, "has not registered the plugin yet")
	conn := must.Get(grpc.NewClient("unix:"+m.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	must.Get(registerapi.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}))(t)
	wantReady(t, address, http.StatusOK, "ok")
	m.StopLVMD()
	wantReady(t, address, http.StatusServiceUnavailable, "lvmd does not answer")

	must.Succeed(t, os.Remove(m.RegistrationSocket()))
	wantAnswer(t, address, "/healthz", http.StatusServiceUnavailable, "no such file")

	stop() // despite this test's open connections
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
		if want := []string{m.KubeletDir + "/pods", m.KubeletDir + "/plugins/kubernetes.io/csi"}; !slices.Equal(shared, want) {
			t.Errorf("checked to be shared are %q, want %q", shared, want)
		}
	case <-time.After(waittest.Limit):
		t.Error("it does not stop")
	}
}

func wantReady(t *testing.T, address string, code int, words string) {
	t.Helper()
	wantAnswer(t, address, "/readyz", code, words)
}

func wantAnswer(t *testing.T, address, path string, code int, words string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	waittest.Succeeds(t, fmt.Sprintf("%s answers %d %q", path, code, words), func() error {
		answer, err := client.Get("https://" + address + path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && (answer.StatusCode != code || !strings.Contains(string(body), words)) {
			err = fmt.Errorf("%d %q", answer.StatusCode, body)
		}
		return err
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}
