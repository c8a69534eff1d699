// Package manifests reads Kubernetes objects as people apply them, so that two ways to
// make the same ones can be compared.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Set holds objects by kind, namespace and name.
type Set map[string]*unstructured.Unstructured

// ErrTwice is the error of an object that is there twice.
var ErrTwice = errors.New("the object is there twice")

// Read adds the objects of a YAML file with any number of documents; empty ones are
// passed over. It fails with ErrTwice when an object is in the set already.
func (s Set) Read(text []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := utilyaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("read a manifest: %w\n%s", err, document)
		}
		if len(object.Object) == 0 {
			continue
		}
		key := Key(object)
		if _, ok := s[key]; ok {
			return fmt.Errorf("%s: %w", key, ErrTwice)
		}
		s[key] = object
	}
}

// digest is what kustomize and the chart append to the names of generated ConfigMaps.
var digest = regexp.MustCompile(`-[a-z0-9]{10}$`)

// Key is how an object is found in a Set: the digest in the name of a generated
// ConfigMap is left out.
func Key(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetKind() == "ConfigMap" {
		name = WithoutDigest(name)
	}
	return strings.Join([]string{object.GroupVersionKind().GroupKind().String(), object.GetNamespace(), name}, "/")
}

// WithoutDigest returns the name of a generated ConfigMap without the digest of what is in it.
func WithoutDigest(name string) string { return digest.ReplaceAllString(name, "") }

// Kustomize returns what `kubectl apply -k` applies of a folder. It reads nothing that is
// not on this machine, and runs no plugins.
func Kustomize(dir string) (Set, error) {
	text, err := Build(dir)
	if err != nil {
		return nil, err
	}
	set := make(Set)
	if err := set.Read(text); err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	return set, nil
}

// Build returns what Kustomize does as the text of a YAML file.
func Build(dir string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsRootOnly
	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	text, err := built.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	return text, nil
}
