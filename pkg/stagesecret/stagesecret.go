// Package stagesecret finds the Secret with the key of an encrypted volume: the one that a
// StorageClass names by the parameters csi.storage.k8s.io/node-stage-secret-name and
// node-stage-secret-namespace, which are templates. It reads no Secret. The controller uses it
// for the volumes that it makes, and kubectl carve for those that it gives to new claims.
package stagesecret

import (
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/carve-csi/carve/api/names"
)

// Variables of the upstream provisioner's templates for Secrets.
const (
	variableVolume     = "pv.name"
	variableNamespace  = "pvc.namespace"
	variableClaim      = "pvc.name"
	variableAnnotation = "pvc.annotations['"
)

// Error says what is wrong with a parameter, in words for the user.
type Error struct {
	// Given is what was found in the parameter, and Allowed what may stand there.
	Parameter, Given, Allowed string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("parameters[%s]: %s is not allowed, allowed: %s", e.Parameter, e.Given, e.Allowed)
}

// Of is the Secret with the key for a claim's volume, nil when the parameters of its class name
// none; errors are *Error. The rules are the upstream provisioner's: the namespace is not for the
// claim's author to choose.
func Of(parameters map[string]string, claim *v1.PersistentVolumeClaim, persistentVolume string) (*v1.SecretReference, error) {
	if parameters[names.ParamStageSecretName] == "" {
		return nil, nil
	}
	values := map[string]string{variableVolume: persistentVolume, variableNamespace: claim.Namespace}
	namespace, err := resolve(parameters, names.ParamStageSecretNamespace, values)
	if err != nil {
		return nil, err
	}
	if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
		return nil, refused(parameters, names.ParamStageSecretNamespace, namespace, wrong)
	}
	values[variableClaim] = claim.Name
	for key, value := range claim.Annotations {
		values[variableAnnotation+key+"']"] = value
	}
	name, err := resolve(parameters, names.ParamStageSecretName, values)
	if err != nil {
		return nil, err
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return nil, refused(parameters, names.ParamStageSecretName, name, wrong)
	}
	return &v1.SecretReference{Namespace: namespace, Name: name}, nil
}

// resolve puts values into a template.
func resolve(parameters map[string]string, key string, values map[string]string) (string, error) {
	template, missing := parameters[key], ""
	resolved := os.Expand(template, func(variable string) string {
		value, ok := values[variable]
		if !ok && missing == "" {
			missing = variable
		}
		return value
	})
	if missing == "" {
		return resolved, nil
	}
	allowed := "${pvc.namespace}, ${pv.name}"
	if key == names.ParamStageSecretName {
		allowed += ", ${pvc.name}, ${pvc.annotations['KEY']} with an annotation that the claim has"
	}
	return "", &Error{Parameter: key, Given: fmt.Sprintf("${%s} in %q", missing, template), Allowed: allowed}
}

func refused(parameters map[string]string, key, resolved string, wrong []string) error {
	return &Error{Parameter: key, Given: fmt.Sprintf("%q, which is %.253q for this claim,", parameters[key], resolved), Allowed: strings.Join(wrong, "; ")}
}
