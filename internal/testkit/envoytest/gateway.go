package envoytest

import "gopkg.in/yaml.v3"

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Data returns the data of a ConfigMap in YAML.
func Data(configMap string) (map[string]string, error) {
	var m struct{ Data map[string]string }
	err := yaml.Unmarshal([]byte(configMap), &m)
	return m.Data, err
}

// GatewayVariables returns what a ConfigMap with the configuration of Envoy Gateway adds to the environment of its rate-limit service.
func GatewayVariables(configMap string) ([]Variable, error) {
	data, err := Data(configMap)
	if err != nil {
		return nil, err
	}
	var gateway struct {
		Provider struct {
			Kubernetes struct {
				RateLimitDeployment struct {
					Container struct{ Env []Variable }
				} `yaml:"rateLimitDeployment"`
			}
		}
	}
	err = yaml.Unmarshal([]byte(data["envoy-gateway.yaml"]), &gateway)
	return gateway.Provider.Kubernetes.RateLimitDeployment.Container.Env, err
}
