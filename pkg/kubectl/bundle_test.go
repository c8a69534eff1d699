package kubectl

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func unpacked(t *testing.T, file string) (order []string, held map[string]string) {
	t.Helper()
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	zipped, err := gzip.NewReader(content)
	if err != nil {
		t.Fatal(err)
	}
	held = map[string]string{}
	archive := tar.NewReader(zipped)
	for header, err := archive.Next(); !errors.Is(err, io.EOF); header, err = archive.Next() {
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(header.Name, "carve-support/")
		order, held[name] = append(order, name), string(text)
	}
	return order, held
}

// The bundle must not read claims one by one: thousands may exist.
func TestTheBundleReadsWhatHelpsMostFirst(t *testing.T) {
	claim := func(name string) runtime.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	}
	client := fake.NewClientset(append(objects(), claim("data"), claim("foreign"))...)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := callOn(t, client, nil, "support-bundle", "--file", file, "--node", "n2"); err != nil {
		t.Fatal(err)
	}
	order, held := unpacked(t, file)
	at := -1
	for _, name := range []string{"doctor.yaml", "events.yaml", "logs/carve-controller-1/lvmd.log", "logs/carve-node-n2/lvmd.log", "volumes/pvc-1.yaml", "claims/team/data.yaml"} {
		next := slices.Index(order, name)
		if next <= at {
			t.Errorf("want %s later in %q", name, order)
		}
		at = next
	}
	for _, name := range []string{"claims/team/foreign.yaml", "claims/team/young.yaml", "logs/carve-node-n1/lvmd.log"} {
		if _, found := held[name]; found {
			t.Errorf("%s is in the archive", name)
		}
	}
	for _, action := range client.Actions() {
		if action.Matches("get", "persistentvolumeclaims") {
			t.Errorf("it read a claim by itself: %v", action)
		}
	}
}

func TestABundleThatLacksSomethingIsWrittenAndAnError(t *testing.T) {
	list := append(objects(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "waits"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "never-started"}}}})
	client := fake.NewClientset(list...)
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("not allowed")
	})
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	got, err := callOn(t, client, nil, "support-bundle", "--file", file)
	if !errors.Is(err, ErrIncomplete) || !strings.HasPrefix(err.Error(), "2 parts could not be read: see not-read.txt") || !strings.Contains(got, "wrote "+file) {
		t.Errorf("want 2 parts that could not be read, and the archive, got %q, %v", got, err)
	}
	_, held := unpacked(t, file)
	if unread := held["not-read.txt"]; !containsAll(unread, []string{"events.yaml: not allowed", "doctor.yaml: "}) || held["volumes/pvc-1.yaml"] == "" {
		t.Errorf("want what could not be read, and the rest, got %q", unread)
	}
	if _, found := held["logs/waits/never-started.log"]; found {
		t.Error("it asked for the log of a container that never started")
	}
}

func TestLogsThatTakeTooMuchAreNotRead(t *testing.T) {
	a := newArchive(io.Discard, today)
	a.logs = allLogBytes
	a.addLog(t.Context(), fake.NewClientset(), pod("carve-system", "p", nameAgent, "n1"), "lvmd", false, "logs/p/lvmd.log")
	if a.unread != 1 || !strings.Contains(a.failed.String(), "logs/p/lvmd.log: the logs before it take too much; choose a node with --node") {
		t.Errorf("want the log not to be read, got %d, %q", a.unread, a.failed.String())
	}
}
