package extender

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const mib = 1 << 20

// twoNodes is a ledger of a node with 100 MiB and one with 50 MiB.
func twoNodes() *scheduler.Ledger {
	l := scheduler.NewLedger(time.Now)
	for node, free := range map[string]int64{"large": 100 * mib, "small": 50 * mib} {
		l.Report(node, scheduler.NodeReport{Classes: []scheduler.ClassReport{{
			Name: "local", Default: true, Group: "g", Total: free, Available: free, MaximumVolume: free, AllocationUnit: 4 * mib}}})
	}
	return l
}

// demandsBySize reads a Pod's demands, in MiB, from an annotation.
func demandsBySize(_ context.Context, pod *v1.Pod) ([]scheduler.Demand, error) {
	var sizes []int64
	if text := pod.Annotations["sizes"]; text == "unknown" {
		return nil, errors.New("claim not found")
	} else if text != "" {
		if err := json.Unmarshal([]byte(text), &sizes); err != nil {
			return nil, err
		}
	}
	var out []scheduler.Demand
	for i, size := range sizes {
		out = append(out, scheduler.Demand{Volume: "pvc-" + string(rune('a'+i)), Bytes: size * mib, Policy: scheduler.LeastFree})
	}
	return out, nil
}

func newHandler(demands func(context.Context, *v1.Pod) ([]scheduler.Demand, error)) http.Handler {
	return New(options(demands))
}

func options(demands func(context.Context, *v1.Pod) ([]scheduler.Demand, error)) Options {
	return Options{Judge: twoNodes(), Demands: demands, Log: slog.New(slog.DiscardHandler),
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds"}, []string{"verb", "code"})}
}

func podOf(sizes string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", Annotations: map[string]string{"sizes": sizes}}}
}

// ask sends a request as the scheduler does, and decodes the answer as it does.
func ask(t *testing.T, client *http.Client, url string, args any, answer any) (code int, text string) {
	t.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode == http.StatusOK {
		must.Succeed(t, json.Unmarshal(content, answer))
	}
	return res.StatusCode, string(content)
}

// The node "elsewhere" has not reported: the capacity that is published for it decides.
func TestFilterKeepsTheNodesThatCanTakeAllVolumesTogether(t *testing.T) {
	server := httptest.NewServer(newHandler(demandsBySize))
	defer server.Close()
	for name, test := range map[string]struct {
		sizes string
		want  []string
	}{
		"a Pod that is not our business":         {"", []string{"small", "large", "elsewhere"}},
		"one volume that fits both":              {"[40]", []string{"small", "large", "elsewhere"}},
		"two that fit the small one only singly": {"[40,40]", []string{"large", "elsewhere"}},
		"two that fit neither together":          {"[40,64]", []string{"elsewhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []string{"small", "large", "elsewhere"}
			var result extenderv1.ExtenderFilterResult
			code, text := ask(t, server.Client(), server.URL+"/filter", extenderv1.ExtenderArgs{Pod: podOf(test.sizes), NodeNames: &nodes}, &result)
			if code != http.StatusOK || result.Error != "" || result.NodeNames == nil || !slices.Equal(*result.NodeNames, test.want) {
				t.Fatalf("%d %s", code, text)
			}
			for _, node := range nodes {
				if why, refused := result.FailedAndUnresolvableNodes[node]; refused == slices.Contains(test.want, node) || refused && !strings.Contains(why, node) {
					t.Errorf("node %s: refused %v: %q", node, refused, why)
				}
			}
		})
	}
}

// What is published is less than what the ledger has, as the leader may know reasons that this replica does not.
func TestFilterComparesEachVolumeWithWhatIsPublished(t *testing.T) {
	published := map[string]int64{"large": 50 * mib, "elsewhere": 40 * mib}
	o := options(demandsBySize)
	o.Published = func(node string, d scheduler.Demand) error {
		if published[node] < d.Bytes {
			return errors.New(node + " has less published")
		}
		return nil
	}
	server := httptest.NewServer(New(o))
	defer server.Close()
	for name, test := range map[string]struct {
		sizes string
		want  []string
	}{
		"a Pod that is not our business":      {"", []string{"small", "large", "unpublished", "elsewhere"}},
		"one volume":                          {"[40]", []string{"large", "elsewhere"}},
		"one that fits by the ledger alone":   {"[64]", []string{}},
		"two, each of which is published for": {"[48,48]", []string{"large"}},
		"two that do not fit together":        {"[50,52]", []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			var result extenderv1.ExtenderFilterResult
			code, text := ask(t, server.Client(), server.URL+"/filter", extenderv1.ExtenderArgs{Pod: podOf(test.sizes), NodeNames: &[]string{"small", "large", "unpublished", "elsewhere"}}, &result)
			if code != http.StatusOK || result.NodeNames == nil || !slices.Equal(*result.NodeNames, test.want) {
				t.Errorf("%d %s", code, text)
			}
		})
	}
}

// The scheduler writes all reasons that differ into the Pod's status, at each attempt.
func TestTheReasonsOfManyNodesAreFew(t *testing.T) {
	o := options(demandsBySize)
	o.Published = func(node string, _ scheduler.Demand) error { return errors.New(node) }
	server := httptest.NewServer(New(o))
	defer server.Close()
	var nodes []string
	for i := range 1000 {
		nodes = append(nodes, fmt.Sprint("n", i))
	}
	var result extenderv1.ExtenderFilterResult
	code, text := ask(t, server.Client(), server.URL+"/filter", extenderv1.ExtenderArgs{Pod: podOf("[4]"), NodeNames: &nodes}, &result)
	reasons := map[string]bool{}
	for _, why := range result.FailedAndUnresolvableNodes {
		reasons[why] = true
	}
	if code != http.StatusOK || len(result.FailedAndUnresolvableNodes) != len(nodes) || !reasons["n0"] || len(reasons) != maximumReasons+1 {
		t.Errorf("%d, %d nodes refused, %d reasons: %s", code, len(result.FailedAndUnresolvableNodes), len(reasons), text)
	}
}

func TestPrioritizeRatesEveryNodeAskedAbout(t *testing.T) {
	server := httptest.NewServer(newHandler(demandsBySize))
	defer server.Close()
	nodes := []string{"small", "large", "elsewhere"}
	var result extenderv1.HostPriorityList
	code, text := ask(t, server.Client(), server.URL+"/prioritize", extenderv1.ExtenderArgs{Pod: podOf("[4]"), NodeNames: &nodes}, &result)
	want := extenderv1.HostPriorityList{{Host: "small", Score: extenderv1.MaxExtenderPriority}, {Host: "large", Score: 0}, {Host: "elsewhere", Score: 0}}
	if code != http.StatusOK || !slices.Equal(result, want) {
		t.Errorf("%d %s", code, text)
	}
}

func TestRequestsThatCannotBeAnsweredSayWhy(t *testing.T) {
	server := httptest.NewServer(newHandler(demandsBySize))
	defer server.Close()
	nodes := []string{"small"}
	for name, test := range map[string]struct {
		args any
		code int
		want string
	}{
		"no Pod":                          {extenderv1.ExtenderArgs{NodeNames: &nodes}, http.StatusBadRequest, "no Pod"},
		"whole nodes instead of names":    {extenderv1.ExtenderArgs{Pod: podOf(""), Nodes: &v1.NodeList{}}, http.StatusBadRequest, "nodeCacheCapable: true"},
		"no JSON object":                  {"x", http.StatusBadRequest, "body: "},
		"an unknown claim":                {extenderv1.ExtenderArgs{Pod: podOf("unknown"), NodeNames: &nodes}, http.StatusServiceUnavailable, "volumes of Pod default/p: claim not found"},
		"a request of more than the most": {strings.Repeat("x", maximumRequest), http.StatusBadRequest, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, verb := range []string{"/filter", "/prioritize"} {
				if code, text := ask(t, server.Client(), server.URL+verb, test.args, nil); code != test.code || !strings.Contains(text, test.want) {
					t.Errorf("%s: %d %q", verb, code, text)
				}
			}
		})
	}
	if code, _ := ask(t, server.Client(), server.URL+"/bind", extenderv1.ExtenderArgs{}, nil); code != http.StatusNotFound {
		t.Errorf("/bind: %d", code)
	}
}

func TestTooManyRequestsAtOnceAreRejectedAndSlowOnesEnd(t *testing.T) {
	body := must.Get(json.Marshal(extenderv1.ExtenderArgs{Pod: podOf(""), NodeNames: &[]string{"small"}}))(t)
	synctest.Test(t, func(t *testing.T) { // time passes when all requests wait
		handler := newHandler(func(ctx context.Context, _ *v1.Pod) ([]scheduler.Demand, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		ask := func() (code int, text string) {
			answer := httptest.NewRecorder()
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/filter", bytes.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			handler.ServeHTTP(answer, request)
			return answer.Code, answer.Body.String()
		}
		began := time.Now()
		codes := make(chan int, maximumWaiting)
		for range maximumWaiting {
			go func() {
				code, _ := ask()
				codes <- code
			}()
		}
		synctest.Wait() // until each of them waits
		if code, text := ask(); code != http.StatusServiceUnavailable || !strings.Contains(text, "too many") || time.Since(began) != 0 {
			t.Errorf("one more: %d %q after %v", code, text, time.Since(began))
		}
		for range maximumWaiting {
			if code := <-codes; code != http.StatusServiceUnavailable {
				t.Errorf("a slow one: %d", code)
			}
		}
		if took := time.Since(began); took != requestTimeout {
			t.Errorf("the slow ones took %v, want %v", took, requestTimeout)
		}
	})
}

// pki is a CA that signs for both sides.
type pki struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.key, p.cert = p.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return p
}

// sign makes NAME.crt and NAME.key.
func (p *pki) sign(name string, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	p.t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(p.t)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := p.cert, p.key
	if parent == nil {
		parent, signer = template, key
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))(p.t)
	cert := must.Get(x509.ParseCertificate(der))(p.t)
	keyDER := must.Get(x509.MarshalECPrivateKey(key))(p.t)
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		must.Succeed(p.t, os.WriteFile(p.file(file), pem.EncodeToMemory(block), 0o600))
	}
	return key, cert
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) client(certificates ...string) *http.Client {
	p.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "extender.test", MinVersion: tls.VersionTLS13}
	config.RootCAs.AddCert(p.cert)
	for _, name := range certificates {
		pair := must.Get(tls.LoadX509KeyPair(p.file(name+".crt"), p.file(name+".key")))(p.t)
		config.Certificates = append(config.Certificates, pair)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 10 * time.Second}
}

func TestServeAsksForTheSchedulersCertificateAndFollowsItsFiles(t *testing.T) {
	ours, others := newPKI(t), newPKI(t)
	serving := func() *x509.Certificate {
		return &x509.Certificate{DNSNames: []string{"extender.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	calling := func() *x509.Certificate {
		return &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
	ours.sign("server", serving())
	ours.sign("scheduler", calling())
	others.sign("server", serving())
	others.sign("scheduler", calling())
	files := Files{Certificate: ours.file("server.crt"), Key: ours.file("server.key"), ClientCA: ours.file("ca.crt")}

	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, listener, files, newHandler(demandsBySize), func(string) {}, slog.New(slog.DiscardHandler))
	}()
	url := "https://" + listener.Addr().String() + "/filter"
	args := extenderv1.ExtenderArgs{Pod: podOf("[40,40]"), NodeNames: &[]string{"small", "large"}}
	answered := func(client *http.Client) bool {
		var result extenderv1.ExtenderFilterResult
		code, _ := ask(t, client, url, args, &result)
		return code == http.StatusOK && slices.Equal(*result.NodeNames, []string{"large"})
	}
	if !answered(ours.client("scheduler")) {
		t.Error("the scheduler is not answered")
	}
	if answered(ours.client()) {
		t.Error("a client without a certificate is answered")
	}
	foreign := ours.client()
	pair := must.Get(tls.LoadX509KeyPair(others.file("scheduler.crt"), others.file("scheduler.key")))(t)
	foreign.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
	if answered(foreign) {
		t.Error("a client with another CA's certificate is answered")
	}
	ours.sign("server", serving()) // renewed
	if !answered(ours.client("scheduler")) {
		t.Error("the scheduler is not answered after the certificate was renewed")
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServeRefusesToStartWithoutUsableFiles(t *testing.T) {
	p := newPKI(t)
	p.sign("server", &x509.Certificate{})
	must.Succeed(t, os.WriteFile(p.file("empty"), nil, 0o600))
	for name, files := range map[string]Files{
		"no key":       {Certificate: p.file("server.crt"), Key: p.file("missing")},
		"another key":  {Certificate: p.file("server.crt"), Key: p.file("ca.key")},
		"no CA file":   {Certificate: p.file("server.crt"), Key: p.file("server.key"), ClientCA: p.file("missing")},
		"an empty one": {Certificate: p.file("server.crt"), Key: p.file("server.key"), ClientCA: p.file("empty")},
	} {
		t.Run(name, func(t *testing.T) {
			listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
			if err := Serve(t.Context(), listener, files, http.NotFoundHandler(), func(string) {}, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("it serves")
			}
		})
	}
}
