"""Makes a model that costs nothing: python tiny_model.py FOLDER (run by the engine's own Python).

Two Llama layers and 512 tokens, weights drawn once from a fixed seed and saved, so every engine that loads the folder
answers greedily with the same text. Wide weights make the text hang on every prompt token: KV of another prompt, or
none, gives another text.
"""
import os
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LINES = [
    "The gateway takes a request and sends it to the worker that holds its cache.",
    "One two three four five six seven eight nine ten eleven twelve.",
    "Prefill reads the prompt, decode writes the answer, the baton is what they hand over.",
    "user assistant system hello world, what is the time of the day in the far city?",
]
CHAT_TEMPLATE = ("{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }}\n{% endfor %}"
                 "{% if add_generation_prompt %}<|assistant|>{% endif %}")
VOCABULARY = 512


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<eos>"],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(LINES * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", model_max_length=4096,
                                   chat_template=CHAT_TEMPLATE)


def make_weights():
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096,
                         initializer_range=0.2, bos_token_id=None, eos_token_id=0, tie_word_embeddings=False)
    config.dtype = torch.float32
    return LlamaForCausalLM(config).to(torch.float32)


def main(folder):
    part = folder + ".part"
    make_weights().save_pretrained(part)
    make_tokenizer().save_pretrained(part)
    os.rename(part, folder)


if __name__ == "__main__":
    main(sys.argv[1])
