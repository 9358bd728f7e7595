"""Learn from rewards which tool answers a question: leave-one-out policy updates on an embedder's vectors."""

import numpy as np

import weft
from weft.tiny import Policy, Tiny

TOOLS = ["calculator", "calendar", "search", "weather"]
QUESTIONS = {
    "calculator": "What is 17 times 23?|Divide 91 by 7|Add up 12, 30 and 8|How much is 15 % of 80?|Take 3 from 20",
    "calendar": "Am I free on Friday?|Move my meeting to noon|When is the dentist?|Book a room at ten|What is next?",
    "search": "Who wrote Faust?|Find a recipe for bread|What is the capital of Peru?|Look up the film|Who won in 1998?",
    "weather": "Will it rain tomorrow?|How warm is it outside?|Do I need an umbrella?|Is it windy?|Will it snow?",
}
NEW = ["What are 6 times 7?", "Have I a meeting on Monday?", "Who painted this?", "Is it cold today?"]

embedder = weft.Embedder("all-MiniLM-L6-v2")
asked = [(text, tool) for tool, texts in enumerate(QUESTIONS.values()) for text in texts.split("|")]
rows = embedder.encode([text for text, _ in asked])
right = np.array([tool for _, tool in asked])[:, None]
rng = np.random.default_rng(0)

# The network never sees which tool is right, only whether one that it tried has helped, sometimes by chance.
policy = Policy(Tiny(rows.shape[1]).tanh(16).softmax(len(TOOLS)), rate=0.01, balance=0.05)
for number in range(80):
    tried = policy.choose(rows)
    helped = (tried == right) | (rng.random(tried.shape) < 0.05)
    update = policy.learn(rows, tried, helped.astype(float))
    if number % 26 == 0 or number == 79:
        shares = ", ".join(f"{tool} {share:.0%}" for tool, share in zip(TOOLS, update.shares))
        print(f"update {number}: {update.reward:.0%} of tries helped ({shares})")

for text, chances in zip(NEW, policy.network(embedder.encode(NEW))):
    ranked = sorted(zip(chances, TOOLS), reverse=True)
    print(f"{text}\n  " + ", ".join(f"{tool} {chance:.0%}" for chance, tool in ranked))
